"""Shapes of training scripts, and where torch.amp's lines go in each."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ampwise.runner.show_code import show_code

SCRIPTS = Path(__file__).parents[2] / "e2e" / "scripts" / "show_code"
BF16 = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
FP16 = 'with torch.autocast("cpu", dtype=torch.float16):'
PRECISIONS = ("bf16", "fp16")


def show(text, precision="bf16", device_type="cpu"):
    shown = show_code(text, filename="train.py", precision=precision, device_type=device_type)
    ast.parse(shown.patched)
    return shown


def changed(text, precision="bf16", device_type="cpu"):
    """The diff's added and removed lines, without the white space around them."""
    shown = show(dedent(text), precision, device_type)
    lines = [line for line in shown.diff.splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    return [f"{line[0]} {line[1:].strip()}" for line in lines if line[1:].strip()]


def added(text, precision="bf16", device_type="cpu"):
    return [line[2:] for line in changed(text, precision, device_type) if line[0] == "+"]


def note(text, precision="bf16", device_type="cpu"):
    shown = show(dedent(text), precision, device_type)
    assert shown.diff == ""
    assert shown.patched == dedent(text)
    assert len(shown.notes) == 1
    return shown.notes[0]


def _losses(text, name):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        namespace = {"__name__": "__main__"}
        exec(compile(text, name, "exec"), namespace)  # the scripts are ours
    finally:
        torch.set_num_threads(threads)
    return namespace["losses"]


PAIRS = [
    (path, precision)
    for path in sorted(SCRIPTS.glob("*.py"))
    for precision in PRECISIONS
    if path.with_suffix(f".{precision}.py").exists()
]


@pytest.mark.parametrize(("path", "precision"), PAIRS, ids=lambda value: getattr(value, "stem", value))
def test_the_patched_script_trains_as_the_one_written_by_hand(path, precision):
    text = path.read_text()
    shown = show(text, precision)
    ours = _losses(shown.patched, f"{path.name} patched")
    by_hand = _losses(path.with_suffix(f".{precision}.py").read_text(), path.name)
    assert len(ours) >= 3
    assert ours == by_hand
    assert ours != _losses(text, path.name), "the precision makes no difference: the test cannot fail"


def test_the_pairs_were_found():
    assert len(PAIRS) >= 14
    assert {precision for _, precision in PAIRS} == set(PRECISIONS)


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.name)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_diff_changes_nothing_but_what_it_shows(path, precision):
    text = path.read_text()
    shown = show(text, precision)
    assert _undo(shown.diff, shown.patched) == text
    assert (shown.diff == "") == (shown.patched == text)
    if not shown.diff:
        assert shown.notes


def _undo(diff, patched):
    """Apply a diff backwards, by its line numbers."""
    result, position = [], 0
    new = patched.splitlines(keepends=True)
    for hunk in re.split(r"^(?=@@)", diff, flags=re.MULTILINE)[1:]:
        head, *body = hunk.splitlines(keepends=True)
        start = int(re.search(r"\+(\d+)", head)[1]) - 1
        result += new[position:start]
        position = start
        for line in body:
            if line[0] in " +":
                assert new[position] == line[1:]
                position += 1
            if line[0] in " -":
                result.append(line[1:])
    return "".join(result + new[position:])


def test_a_patched_file_runs_as_a_program(tmp_path):
    text = (SCRIPTS / "trainer_class.py").read_text()
    script = tmp_path / "train.py"
    script.write_text(show(text, "bf16").patched + "\nprint(len(losses), losses[-1] < losses[0])\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "8"


def test_it_needs_no_torch():
    code = (
        "import sys; from ampwise.runner.show_code import show_code\n"
        "show_code('import torch\\nloss.backward()\\n', filename='x', precision='bf16', device_type='cpu')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The plain loop


def test_the_lines_stand_where_they_belong():
    shown = show((SCRIPTS / "plain.py").read_text(), "fp16")
    assert shown.diff.startswith("--- train.py\n+++ train.py in fp16\n@@ -6,15 +6,18 @@\n")
    assert shown.notes == ()
    assert changed((SCRIPTS / "plain.py").read_text(), "fp16") == [
        '+ scaler = torch.amp.GradScaler("cpu")',
        "- outputs = model(inputs)",
        "- loss = criterion(outputs, targets)  # a comment",
        f"+ {FP16}",
        "+ outputs = model(inputs)",
        "+ loss = criterion(outputs, targets)  # a comment",
        "- loss.backward()",
        "- optimizer.step()",
        "+ scaler.scale(loss).backward()",
        "+ scaler.step(optimizer)",
        "+ scaler.update()",
    ]


LOOP = """
    import torch
    import torch.nn.functional as F
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        {body}
"""


def loop(*body):
    return dedent(LOOP).format(body="\n    ".join(body))


def test_the_device_type_is_written_into_the_lines():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()")
    assert added(text, "fp16", "cuda")[:2] == [
        'scaler = torch.amp.GradScaler("cuda")',
        'with torch.autocast("cuda", dtype=torch.float16):',
    ]


def test_bf16_needs_no_scaler():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()")
    assert added(text) == [BF16, "loss = F.mse_loss(model(x), y)"]


def test_moving_data_stays_outside():
    text = loop(
        "x, y = x.to(device), y.to(device)",
        "x = x.view(x.size(0), -1)",
        "out = model(x)",
        "loss = F.cross_entropy(out, y)",
        "loss.backward()",
        "optimizer.step()",
    )
    assert added(text) == [BF16, "out = model(x)", "loss = F.cross_entropy(out, y)"]


def test_backward_and_step_stay_outside_and_later_statements_too():
    text = loop(
        "loss = F.mse_loss(model(x), y)", "print(loss)", "loss.backward()", "optimizer.step()", "acc = model(x)"
    )
    assert added(text) == [BF16, "loss = F.mse_loss(model(x), y)"]


def test_a_backward_under_a_condition():
    text = loop(
        "loss = F.mse_loss(model(x), y)",
        "if torch.isfinite(loss):",
        "    loss.backward()",
        "    optimizer.step()",
        "optimizer.zero_grad()",
    )
    assert added(text, "fp16") == [
        'scaler = torch.amp.GradScaler("cpu")',
        FP16,
        "loss = F.mse_loss(model(x), y)",
        "scaler.scale(loss).backward()",
        "scaler.step(optimizer)",
        "scaler.update()",
    ]


def test_a_forward_under_no_grad_that_the_loss_needs_is_computed_alike():
    text = loop(
        "with torch.no_grad():",
        "    target = y + 0.9 * target_net(x).max(1)[0]",
        "q = model(x)",
        "loss = F.smooth_l1_loss(q, target)",
        "loss.backward()",
        "optimizer.step()",
    )
    assert added(text)[:3] == [BF16, "with torch.no_grad():", "target = y + 0.9 * target_net(x).max(1)[0]"]


def test_a_loss_from_a_dict_of_losses():
    text = loop(
        "losses = {}",
        'losses["a"] = F.mse_loss(model(x), y)',
        'losses["b"] = model(x).abs().mean()',
        "sum(losses.values()).backward()",
        "optimizer.step()",
    )
    assert added(text) == [BF16, 'losses["a"] = F.mse_loss(model(x), y)', 'losses["b"] = model(x).abs().mean()']
    assert "scaler.scale(sum(losses.values())).backward()" in added(text, "fp16")


def test_the_output_of_a_transformers_model():
    text = loop("outputs = model(**x)", "loss = outputs.loss", "loss.backward()", "optimizer.step()")
    assert added(text) == [BF16, "outputs = model(**x)", "loss = outputs.loss"]


def test_a_matrix_product_without_a_module():
    text = """
        import torch
        w = torch.zeros(4, 1, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        while True:
            x, y = next(data)
            error = x @ w - y
            error.pow(2).mean().backward()
            optimizer.step()
    """
    assert added(text) == [BF16, "error = x @ w - y"]


def test_two_losses_and_retain_graph():
    text = loop(
        "h = model(x)",
        "a = F.mse_loss(h, y)",
        "a.backward(retain_graph=True)",
        "b = F.l1_loss(h, y)",
        "b.backward()",
        "optimizer.step()",
    )
    assert added(text) == [BF16, "h = model(x)", "a = F.mse_loss(h, y)", BF16, "b = F.l1_loss(h, y)"]
    assert "scaler.scale(a).backward(retain_graph=True)" in added(text, "fp16")


def test_autograd_backward():
    text = loop("loss = F.mse_loss(model(x), y)", "torch.autograd.backward([loss])", "optimizer.step()")
    assert "torch.autograd.backward(scaler.scale([loss]))" in added(text, "fp16")


def test_a_loss_computed_in_the_backward_statement_joins_the_forward_before_it():
    text = loop("out = model(x)", "y = y.float()", "F.mse_loss(out, y).backward()", "optimizer.step()")
    assert added(text) == [BF16, "out = model(x)", "y = y.float()", "loss = F.mse_loss(out, y)", "loss.backward()"]


def test_the_new_name_of_a_loss_is_free_in_its_function():
    text = loop("F.mse_loss(model(x), y).backward()", "optimizer.step()", "loss = 0")
    assert "amp_loss.backward()" in added(text)


def test_what_feeds_the_loss_from_an_outer_loop_is_wrapped_alone():
    text = """
        import torch
        for epoch in range(3):
            for i in range(8):
                with torch.no_grad():
                    action = model(state)
                    state = env.step(action)
                actions[i] = action
            for i in range(8):
                loss = F.mse_loss(model(state), actions[i])
                loss.backward()
                optimizer.step()
    """
    patched = show(dedent(text)).patched
    assert f"        with torch.no_grad():\n            {BF16}\n                action = model(state)\n" in patched
    assert "\n            state = env.step(action)\n" in patched


def test_what_a_function_leaves_on_an_object_is_followed():
    text = """
        import torch
        def act(state):
            probs = policy(state)
            policy.saved.append(probs.log())
            return probs.argmax()
        def finish():
            loss = torch.stack(policy.saved).sum()
            loss.backward()
            optimizer.step()
        for episode in range(3):
            action = act(state)
            finish()
    """
    assert added(text) == [BF16, "action = act(state)"]


def test_a_loop_that_only_calls_such_a_function_is_wrapped_inside():
    text = """
        import torch
        def act(state):
            policy.saved.append(policy(state).log())
        def finish():
            loss = torch.stack(policy.saved).sum()
            loss.backward()
            optimizer.step()
        for episode in range(3):
            for t in range(9):
                print(t)
                act(t)
            finish()
    """
    assert f"        print(t)\n        {BF16}\n            act(t)\n    finish()\n" in show(dedent(text)).patched


def test_an_earlier_value_of_the_same_name_is_another_thing():
    text = loop("out = model(y)", "print(out)", "out = model(x)", "loss = F.mse_loss(out, y)", "loss.backward()")
    assert added(text) == [BF16, "out = model(x)", "loss = F.mse_loss(out, y)"]


def test_the_region_reaches_to_the_last_line_of_the_loss():
    text = loop("loss = model(x).mean()", "print(loss)", "loss = loss / 4", "loss.backward()")
    assert added(text) == [BF16, "loss = model(x).mean()", "print(loss)", "loss = loss / 4"]


def test_a_region_in_an_outer_block_ends_with_the_forward():
    text = loop(
        "out = model(x)",
        "print(out)",
        "scale = out * 2",
        "if y:",
        "    loss = F.mse_loss(scale, y)",
        "    loss.backward()",
    )
    assert added(text) == [BF16, "out = model(x)", BF16, "loss = F.mse_loss(scale, y)"]


# Accumulation, clipping, several optimizers


def test_accumulation_updates_where_it_steps():
    text = loop(
        "loss = F.mse_loss(model(x), y) / 4",
        "loss.backward()",
        "if (i + 1) % 4 == 0:",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "    optimizer.step()",
        "    optimizer.zero_grad()",
    )
    assert added(text, "fp16")[3:] == [
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        "scaler.step(optimizer)",
        "scaler.update()",
    ]


def test_clipping_at_every_micro_batch_is_said_to_have_no_place():
    text = loop(
        "loss = F.mse_loss(model(x), y) / 4",
        "loss.backward()",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "if (i + 1) % 4 == 0:",
        "    optimizer.step()",
        "    optimizer.zero_grad()",
    )
    assert "move line 9 under line 10 first" in note(text, "fp16")
    assert added(text, "bf16")[0] == BF16


def test_gradients_read_by_hand_are_unscaled_first():
    text = loop(
        "loss = F.mse_loss(model(x), y)",
        "loss.backward()",
        "total = sum(p.grad.norm() for p in model.parameters())",
        "torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)",
        "optimizer.step()",
    )
    shown = show(text, "fp16")
    assert shown.patched.count("unscale_") == 1
    assert "    scaler.unscale_(optimizer)\n    total = sum(" in shown.patched


def test_a_conditional_clip():
    text = loop(
        "loss = F.mse_loss(model(x), y)",
        "loss.backward()",
        "if args.clip > 0:",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)",
        "optimizer.step()",
    )
    assert "        scaler.unscale_(optimizer)\n        torch.nn.utils.clip" in show(text, "fp16").patched


def test_a_loop_over_parameters_is_unscaled_before_not_in_it():
    text = loop(
        "loss = F.mse_loss(model(x), y)",
        "loss.backward()",
        "for p in model.parameters():",
        "    p.grad.clamp_(-1, 1)",
        "optimizer.step()",
    )
    assert "    scaler.unscale_(optimizer)\n    for p in" in show(text, "fp16").patched


def test_emptying_gradients_is_no_use_of_them():
    text = loop(
        "loss = F.mse_loss(model(x), y)",
        "loss.backward()",
        "optimizer.step()",
        "for p in ps: p.grad = None",
        "for p in ps:",
        "    if p.grad is not None: p.grad.zero_()",
    )
    assert "unscale_" not in show(text, "fp16").patched


def test_clipping_in_a_helper_unscales_where_it_is_called():
    text = """
        import torch
        def clip(model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        def step(model, optimizer, x):
            loss = model(x).mean()
            loss.backward()
            clip(model)
            optimizer.step()
    """
    assert "    scaler.unscale_(optimizer)\n    clip(model)\n" in show(dedent(text), "fp16").patched


def test_each_optimizer_is_unscaled_for_its_own_clip():
    text = """
        import torch
        opt_a = torch.optim.Adam(a.parameters())
        opt_b = torch.optim.Adam(b.parameters())
        for x in loader:
            loss = a(x).mean() + b(x).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(b.parameters(), 1.0)
            torch.nn.utils.clip_grad_norm_(a.parameters(), 1.0)
            opt_a.step()
            opt_b.step()
    """
    assert added(text, "fp16") == [
        'scaler = torch.amp.GradScaler("cpu")',
        FP16,
        "loss = a(x).mean() + b(x).mean()",
        "scaler.scale(loss).backward()",
        "scaler.unscale_(opt_b)",
        "scaler.unscale_(opt_a)",
        "scaler.step(opt_a)",
        "scaler.step(opt_b)",
        "scaler.update()",
    ]


def test_a_critic_that_steps_more_often_updates_in_its_own_loop():
    text = """
        import torch
        opt_d = torch.optim.Adam(critic.parameters())
        opt_g = torch.optim.Adam(generator.parameters())
        for real in loader:
            for _ in range(5):
                d_loss = critic(generator(noise()).detach()).mean() - critic(real).mean()
                d_loss.backward()
                opt_d.step()
            g_loss = -critic(generator(noise())).mean()
            g_loss.backward()
            opt_g.step()
    """
    patched = show(dedent(text), "fp16").patched
    assert "        scaler.step(opt_d)\n        scaler.update()\n    with" in patched
    assert "    scaler.step(opt_g)\n    scaler.update()\n" in patched


def test_a_second_optimizer_under_a_condition_shares_the_update():
    text = loop(
        "loss = F.mse_loss(model(x), y)",
        "loss.backward()",
        "optimizer.step()",
        "if i % 2:",
        "    optimizer_2.step()",
    )
    assert "    if i % 2:\n        scaler.step(optimizer_2)\n    scaler.update()\n" in show(text, "fp16").patched


def test_steps_in_two_branches_each_update():
    text = loop(
        "loss = F.mse_loss(model(x), y)",
        "loss.backward()",
        "if i % 2:",
        "    optimizer.step()",
        "else:",
        "    optimizer_2.step()",
    )
    assert show(text, "fp16").patched.count("scaler.update()") == 2


def test_a_list_of_optimizers_updates_once():
    text = loop(
        "loss = F.mse_loss(model(x), y)", "loss.backward()", "for opt in optimizers:", "    opt.step()", "print(loss)"
    )
    assert "        scaler.step(opt)\n    scaler.update()\n    print" in show(text, "fp16").patched


def test_the_scheduler_and_the_profiler_are_no_optimizers():
    text = loop(
        "loss = F.mse_loss(model(x), y)",
        "loss.backward()",
        "optimizer.step()",
        "scheduler.step()",
        "prof.step()",
        "state = env.step(action)",
    )
    assert [line for line in added(text, "fp16") if ".step(" in line] == ["scaler.step(optimizer)"]


# The scaler's home, its name, the checkpoint


def test_an_optimizer_made_in_branches():
    text = """
        import torch
        if adam:
            optimizer = torch.optim.Adam(model.parameters())
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
    """
    assert "lr=0.1)\nscaler = torch.amp.GradScaler" in show(dedent(text), "fp16").patched


def test_an_optimizer_made_under_a_condition_of_its_own():
    text = """
        import torch
        if __name__ == "__main__":
            import other
            optimizer = torch.optim.Adam(model.parameters())
            if tuned:
                extra_optimizer = torch.optim.Adam([alpha])
            else:
                alpha = 1
            for x in loader:
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
    """
    assert "        alpha = 1\n    scaler = torch.amp.GradScaler" in show(dedent(text), "fp16").patched


def test_a_scaler_is_made_once_though_the_epoch_is_a_function():
    text = """
        import torch
        import other

        def epoch(model, optimizer):
            for x in loader:
                loss = model(x).mean()
                loss.backward()
                optimizer.step()

        def main():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                epoch(model, optimizer)
    """
    assert 'import other\n\nscaler = torch.amp.GradScaler("cpu")\n' in show(dedent(text), "fp16").patched


def test_names_that_are_taken():
    text = loop("loss = F.mse_loss(model(scaler.transform(x)), grad_scaler)", "loss.backward()", "optimizer.step()")
    assert "amp_scaler.step(optimizer)" in added(text, "fp16")
    text = loop("loss = f(model(scaler(x)), grad_scaler, amp_scaler)", "loss.backward()", "optimizer.step()")
    assert "scaler_2.step(optimizer)" in added(text, "fp16")


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ('{"o": optimizer.state_dict()}', '{"o": optimizer.state_dict(), "scaler": scaler.state_dict()}'),
        ('{"o": optimizer.state_dict(),}', '{"o": optimizer.state_dict(), "scaler": scaler.state_dict()}'),
        ("dict(o=optimizer.state_dict())", "dict(o=optimizer.state_dict(), scaler=scaler.state_dict())"),
        (
            '{"scaler": 1, "o": optimizer.state_dict()}',
            '{"scaler": 1, "o": optimizer.state_dict(), "grad_scaler": scaler.state_dict()}',
        ),
    ],
)
def test_the_scaler_goes_into_the_checkpoint(saved, expected):
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()", f"torch.save({saved}, path)")
    assert f"torch.save({expected}, path)" in show(text, "fp16").patched


def test_a_checkpoint_over_several_lines_without_a_last_comma():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()") + dedent("""
        torch.save(
            {
                "m": model.state_dict(),
                "o": optimizer.state_dict()
            },
            path,
        )
    """)
    assert (
        '        "o": optimizer.state_dict(),\n        "scaler": scaler.state_dict(),\n    },\n'
        in show(text, "fp16").patched
    )


def test_a_checkpoint_handed_to_a_helper_and_loaded_again():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()") + dedent("""
        def save(state, path):
            torch.save(state, path)

        save({"o": optimizer.state_dict()}, path)
        ckpt = torch.load(path)
        optimizer.load_state_dict(ckpt["o"])
    """)
    patched = show(text, "fp16").patched
    assert 'save({"o": optimizer.state_dict(), "scaler": scaler.state_dict()}, path)' in patched
    assert 'if "scaler" in ckpt:\n    scaler.load_state_dict(ckpt["scaler"])\n' in patched


def test_weights_alone_are_no_checkpoint():
    text = loop(
        "loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()", "torch.save(model.state_dict(), path)"
    )
    assert "scaler.state_dict" not in show(text, "fp16").patched


# The text itself


def test_windows_line_ends_and_no_line_end_at_the_end():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()").rstrip().replace("\n", "\r\n")
    shown = show(text, "fp16")
    assert shown.patched.endswith("    scaler.step(optimizer)\r\n    scaler.update()")
    assert shown.patched.count("\n") == shown.patched.count("\r\n")


def test_text_that_is_not_ascii():
    text = loop('print("Größe: 日本"); loss = F.mse_loss(model(x), y)', "loss.backward()", "optimizer.step()")
    assert f'    print("Größe: 日本")\n    {BF16}\n        loss = F.mse_loss(model(x), y)\n' in show(text).patched


def test_a_form_feed_is_no_line_end():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()") + "\f\nx = 1\n"
    assert _undo_lines(show(text)) == text


def _undo_lines(shown):
    return shown.patched.replace(f"    {BF16}\n", "").replace("        loss =", "    loss =")


def test_a_future_import_stays_first():
    text = loop("loss = F.mse_loss(model(x), y)", "loss.backward()", "optimizer.step()").replace(
        "\nimport torch\n", '"""Doc."""\nfrom __future__ import annotations\n'
    )
    head = '"""Doc."""\nfrom __future__ import annotations\nimport torch\nimport torch.nn.functional as F\n'
    assert show(text).patched.startswith(head)


def test_a_syntax_error_is_pythons_own():
    with pytest.raises(SyntaxError) as caught:
        show_code("for x in\n", filename="train.py", precision="bf16", device_type="cpu")
    assert caught.value.filename == "train.py"


# Nothing to add, or no place


def test_fp32_needs_nothing():
    assert "needs no lines" in note(loop("model(x).mean().backward()"), "fp32")


def test_tf32_is_one_switch():
    text = loop("loss = model(x).mean()", "loss.backward()", "optimizer.step()")
    assert added(text, "tf32") == ['torch.set_float32_matmul_precision("high")']


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("with torch.autocast('cuda'): loss = model(x).mean()", "line 7: the script already uses torch.autocast"),
        ("scaler = torch.cuda.amp.GradScaler()", "torch.cuda.amp.GradScaler"),
        ("with step.autocast(): loss = model(x).mean()", "step.autocast"),
        ("import apex; apex.amp.initialize(model, optimizer)", "apex.amp.initialize"),
        ("import ampwise; step = ampwise.TrainStep(optimizer)", "ampwise.TrainStep"),
    ],
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_scripts_own_amp_is_left_alone(line, what, precision):
    assert what in note(loop(line, "loss.backward()", "optimizer.step()"), precision)


def test_a_model_cast_whole_is_named():
    assert "line 7: the whole model is cast with .half()" in note(loop("model.half()", "model(x).mean().backward()"))


@pytest.mark.parametrize(
    ("text", "bf16", "fp16"),
    [
        (
            "import lightning as L\nL.Trainer(max_epochs=3).fit(model)\n",
            'L.Trainer(max_epochs=3, precision="bf16-mixed").fit(model)',
            'L.Trainer(max_epochs=3, precision="16-mixed").fit(model)',
        ),
        (
            "import pytorch_lightning as pl\ntrainer = pl.Trainer()\n",
            'trainer = pl.Trainer(precision="bf16-mixed")',
            'trainer = pl.Trainer(precision="16-mixed")',
        ),
        (
            "from transformers import TrainingArguments\nTrainingArguments(\n    'out',\n    num_train_epochs=1,\n)\n",
            "num_train_epochs=1, bf16=True,",
            "num_train_epochs=1, fp16=True,",
        ),
        (
            "from accelerate import Accelerator\na = Accelerator()\na.backward(loss)\nopt.step()\n",
            'a = Accelerator(mixed_precision="bf16")',
            'a = Accelerator(mixed_precision="fp16")',
        ),
    ],
)
def test_a_framework_takes_the_precision_as_an_argument(text, bf16, fp16):
    assert added(text, "bf16") == [bf16]
    assert added(text, "fp16") == [fp16]
    assert "takes the precision as" in show(text).notes[0]


def test_a_frameworks_own_choice_stays():
    text = "import lightning as L\nL.Trainer(precision='32').fit(model)\n"
    assert note(text) == 'line 2: Lightning is already given precision; for bf16 pass precision="bf16-mixed"'


def test_a_lightning_module_without_its_trainer():
    text = "import lightning as L\nclass M(L.LightningModule):\n    def training_step(self, b): return self.net(b)\n"
    assert 'imports Lightning: pass precision="bf16-mixed" to Trainer or Fabric where it is made' in note(text)


def test_a_script_without_a_training_step():
    assert "no backward() in this file" in note("import torch\nprint(torch.ones(3).sum())\n")
    assert BF16 in note("x = 1\n")


def test_a_loss_that_comes_from_elsewhere():
    shown = show("def backward(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n")
    assert shown.diff == ""
    assert "line 2: what computes this loss was not found in this file" in shown.notes[0]


def test_fp16_where_no_optimizer_steps():
    text = loop("model(x).mean().backward()", "for p in model.parameters(): p.data -= 0.1 * p.grad")
    assert "no optimizer step was found" in note(text, "fp16")
    assert added(text)[0] == BF16


def test_fp16_under_a_closure():
    assert "refuses step(closure)" in note((SCRIPTS / "closure.py").read_text(), "fp16")


def test_a_loss_within_a_larger_expression():
    shown = show(loop("[model(x).mean().backward() for x in y]", "optimizer.step()"))
    assert "line 7: computes a loss within a larger expression" in shown.notes[0]


def test_bare_bce_is_refused_on_cuda_and_named():
    text = loop("loss = F.binary_cross_entropy(model(x), y)", "loss.backward()", "optimizer.step()")
    assert show(text).notes == ()
    assert "line 7: torch.nn.functional.binary_cross_entropy refuses" in show(text, "bf16", "cuda").notes[0]


def test_a_gradient_penalty_is_named_in_fp16():
    text = loop(
        "out = model(x)",
        "g = torch.autograd.grad(out.sum(), x, create_graph=True)[0]",
        "loss = out.mean() + g.norm()",
        "loss.backward()",
        "optimizer.step()",
    )
    assert "line 8: torch.autograd.grad is not scaled" in show(text, "fp16").notes[0]
    assert show(text).notes == ()
