"""Where the scaler's lines go: clipping, accumulation, several optimizers, its home and the checkpoint."""

from textwrap import dedent

import pytest

from shown import BF16, FP16, added, loop, note, show


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
