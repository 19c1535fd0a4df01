"""Shapes of training scripts, and what of each comes under autocast."""

from textwrap import dedent

from shown import BF16, FP16, SCRIPTS, added, changed, loop, show


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
