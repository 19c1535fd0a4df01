"""``apply_plan``: what it does to a model's computation."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

from ampwise._base.errors import CannotRunError
from ampwise.plan.plan import Plan
from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
from planned_nets import BF16, Quiet, Seen, net, plan, same_state, state_of


def test_the_default_holds_where_no_rule_does(x):
    model = net()
    undo = apply_plan(model, plan())
    out = model(x)
    undo()
    assert {layer.dtypes["linear"] for layer in model.layers} == {BF16}
    assert out.dtype is torch.float32, "code outside of autocast is given fp32"
    with torch.autocast("cpu", BF16):
        expected = model(x)
    assert torch.equal(out, expected.float())


def test_inside_of_autocast_its_results_are_autocasts(x):
    model = net()
    with plan_in_effect(model, plan()), torch.autocast("cpu", BF16):
        assert model(x).dtype is BF16


def test_a_module_in_fp32_gets_its_inputs_in_fp32_and_is_exact(x):
    model = net()
    with plan_in_effect(model, plan({"module": "layers.1", "compute": "fp32"})):
        model(x)
    assert model.layers[0].dtypes["linear"] is BF16
    assert model.layers[1].dtypes["x"] is torch.float32
    assert model.layers[1].dtypes["linear"] is torch.float32
    assert model.wo.dtypes["linear"] is BF16


def test_a_rule_on_a_list_of_modules_holds_for_each(x):
    model = net()
    with plan_in_effect(model, plan({"module": "layers", "compute": "fp32"})):
        model(x)
    assert [layer.dtypes["linear"] for layer in model.layers] == [torch.float32] * 2


def test_a_low_module_in_an_fp32_model_gives_fp32_back(x):
    model = net()
    with plan_in_effect(model, plan({"module": "layers.0", "compute": "bf16"}, default="fp32")):
        model(x)
    assert model.layers[0].dtypes["linear"] is BF16
    assert model.layers[1].dtypes["x"] is torch.float32


def test_two_low_formats_in_turn_share_no_cast_of_a_weight(x):
    linear = nn.Linear(4, 4)
    model = nn.Sequential(nn.Sequential(linear), nn.Sequential(linear))
    with plan_in_effect(model, plan({"module": "re:1", "compute": "fp16"})):
        assert torch.isfinite(model(x)).all()


def test_output_and_gradient_formats(x):
    model = net(Quiet)
    seen = []
    rule = {"module": "a", "compute": "bf16", "output": "fp32", "grad": "fp8_e5m2"}
    with plan_in_effect(model, plan(rule, default="fp32")):
        model.wo.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
        model(x).square().sum().backward()
    assert seen == [torch.float32]
    rounded = model.a.bias.grad.clone()
    model.zero_grad()
    with plan_in_effect(model, plan({"module": "a", "compute": "bf16", "output": "fp32"}, default="fp32")):
        model(x).square().sum().backward()
    assert not torch.equal(rounded, model.a.bias.grad)
    assert torch.allclose(rounded, model.a.bias.grad, rtol=0.5, atol=1e-4)


def test_nested_arguments_and_results():
    class Nested(nn.Module):
        def forward(self, pair, *, table):
            assert pair[0].dtype is pair[1][0].dtype is table["x"].dtype is torch.float32
            assert pair[1][1] == "text"
            assert table["n"].dtype is torch.int64
            return {"y": pair[0], "rest": (pair[1][0], None)}

    low = torch.ones(2, dtype=BF16)
    wide = torch.ones(2, dtype=torch.float64)
    model = Nested()
    with plan_in_effect(model, Plan(default="fp32", output="bf16")):
        out = model((low, [low, "text"]), table={"x": low, "n": torch.ones(1, dtype=torch.int64), "w": wide})
    assert out["y"].dtype is out["rest"][0].dtype is BF16


def test_what_needs_no_cast_is_handed_on_by_identity(x):
    class Same(nn.Module):
        def forward(self, cache, x):
            cache.append(x)
            return cache

    cache = []
    model = Same()
    with plan_in_effect(model, Plan(default="fp32")):
        assert model(cache, x) is cache
    assert cache == [x]


def test_stock_equals_torchs_autocast_bit_for_bit(x):
    def train(apply, region):
        model = net(Quiet)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        undo = apply(model)
        for _ in range(4):
            with region():
                loss = F.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        undo()
        return [p.detach() for p in model.parameters()]

    def autocast():
        return torch.autocast("cpu", BF16)

    with_torch = train(lambda _: lambda: None, autocast)
    with_plan = train(lambda model: apply_plan(model, plan()), autocast)
    assert all(map(torch.equal, with_torch, with_plan))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_runs_a_forward_again_as_it_ran(use_reentrant, x):
    class Checkpointed(Quiet):
        def forward(self, x):
            hidden = checkpoint(self.block, x, use_reentrant=use_reentrant)
            return F.softmax(hidden, -1)

        def block(self, x):
            return self.out(torch.relu(self.wo(torch.relu(self.a(x)))))

    rules = ({"op": "linear", "compute": "fp32", "module": "wo"}, {"module": "out", "compute": "fp32"})
    x.requires_grad_()
    grads = []
    for kind in (Quiet, Checkpointed):
        model = net(kind)
        if kind is Quiet:
            model.forward = lambda x, m=model: F.softmax(Checkpointed.block(m, x), -1)
        with plan_in_effect(model, plan(*rules)):
            model(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *grads))


def test_a_checkpointed_layer_keeps_the_operators_rules_when_it_runs_again(x):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 4)
            self.dtypes = []

        def forward(self, x):
            y = self.proj(x)
            weights = torch.softmax(y, -1)
            self.dtypes.append(weights.dtype)
            return weights * x

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, x):
            return checkpoint(self.attention, x, use_reentrant=False)

    model = Outer()
    with plan_in_effect(model, plan({"op": "softmax", "compute": "fp32"})):
        model(x.requires_grad_()).sum().backward()
    assert model.attention.dtypes == [torch.float32] * 2


def test_two_threads_with_different_plans_do_not_meet(x):
    models = [net(), net()]
    undos = [apply_plan(models[0], plan()), apply_plan(models[1], plan({"op": "linear", "compute": "fp32"}))]
    turn = threading.Barrier(2, timeout=60)
    seen = [set(), set()]

    def work(index):
        for _ in range(20):
            turn.wait()
            models[index](x)
            seen[index].add(models[index].wo.dtypes["linear"])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for undo in undos:
        undo()
    assert seen == [{BF16}, {torch.float32}]


def test_a_model_in_ddps_or_a_compilers_wrapper_is_named_as_if_alone(x):
    model = net()
    with plan_in_effect(nn.DataParallel(model), plan({"module": "layers.0", "compute": "fp32"})):
        model(x)
    assert model.layers[0].dtypes["linear"] is torch.float32


def test_one_rule_on_a_shared_module_holds_wherever_it_is_called(x):
    shared = Seen()
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    with plan_in_effect(model, plan({"module": "0.0", "compute": "fp32"})):
        model(x)
    assert shared.dtypes["linear"] is torch.float32


class Autoencoder(nn.Module):
    """Its methods are called in its place, as those of diffusers' are."""

    def __init__(self, shared=None):
        super().__init__()
        self.encoder, self.decoder, self.shared = Seen(), Seen(), shared

    def encode(self, x):
        return self.encoder(x)

    def forward(self, x):
        return self.decoder(self.encode(x))


class Latent(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = Seen()
        self.vae, self.unet = Autoencoder(self.shared), Seen()

    def forward(self, x):
        return self.unet(self.vae.encode(x)) + self.shared(x)


def test_a_rule_holds_where_a_modules_method_is_called_in_its_place(x):
    model = net(Latent)
    before = state_of(model)
    undo = apply_plan(model, plan({"module": "*.vae", "compute": "fp32"}))
    model(x)
    assert model.vae.encoder.dtypes["linear"] is torch.float32
    assert model.unet.dtypes["linear"] is model.shared.dtypes["linear"] is BF16
    undo()
    assert same_state(before, state_of(model))


def test_the_default_holds_where_a_models_method_is_called_in_its_place(x):
    model = net(Autoencoder)
    with plan_in_effect(model, plan()):
        assert model.encode(x).dtype is torch.float32
        assert model.encoder.dtypes["linear"] is BF16
        out = model(x)
    with torch.autocast("cpu", BF16):
        assert torch.equal(model(x).float(), out)


def test_cuda_lists_are_shared_and_go_with_the_last_plan(x):
    models = [net(), net()]
    cuda = Plan(default="bf16")
    undos = [apply_plan(model, cuda) for model in models]
    models[0](x)
    assert models[0].wo.dtypes["softmax"] is torch.float32
    undos[0]()
    models[1](x)
    assert models[1].wo.dtypes["softmax"] is torch.float32
    with pytest.raises(CannotRunError, match="asks for torch's own cast lists"):
        apply_plan(models[0], plan())
    undos[1]()
    with plan_in_effect(models[0], plan()):
        models[0](x)
    assert models[0].wo.dtypes["softmax"] is BF16


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_a_plan_holds_whatever_autocasts_default_dtype(default):
    model, before, seen = nn.Sequential(nn.Linear(4, 4)), torch.get_autocast_dtype("cpu"), []
    model[0].register_forward_hook(lambda *called: seen.append(called[2].dtype))
    torch.set_autocast_dtype("cpu", default)
    try:
        with plan_in_effect(model, "bf16"):
            model(torch.ones(1, 4))
    finally:
        torch.set_autocast_dtype("cpu", before)
    assert seen == [torch.bfloat16]
