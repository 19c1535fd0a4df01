"""Laws of every preset, on a model that has a module for each of its rules."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ampwise.plan.presets import presets
from ampwise.runtime.casts.autocast import autocast
from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
from torchao_stand_in import Float8Linear, put_in_place

NAMES = sorted(presets())
BACKENDS = [
    "aot_eager",
    pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.leaves_behind("inductor adds to sys.path")]),
]


class Norm(nn.Module):
    """RMSNorm by hand."""

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class Rotary(nn.Module):
    def forward(self, x):
        angles = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)[:, None] * 0.3
        return x * torch.cos(angles).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary, self.norm, self.gate = Rotary(), Norm(), nn.Linear(16, 2)
        self.wi, self.wo, self.vae, self.lm_head = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        x = self.rotary(self.norm(x))
        routes = F.softmax(self.gate(x), -1)
        x = x + self.wo(torch.relu(self.wi(x))) * routes[..., :1]
        x = F.rms_norm(F.layer_norm(x, (16,)), (16,))
        return self.lm_head(self.vae(x))


def model(name):
    torch.manual_seed(0)
    made = nn.Sequential(Block())
    return made.to(torch.bfloat16) if presets()[name].plan.parameters == "bf16" else made


def plan_of(name, net):
    """The preset's plan with what keeps its updates."""
    options = {}
    if presets()[name].plan.updates != "nearest":
        options["optimizers"] = torch.optim.SGD(net.parameters(), lr=0.1)
    return apply_plan(net, presets()[name].plan, **options)


def outcome(call, net):
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1), requires_grad=True)
    for p in net.parameters():
        p.grad = None
    out = call(x)
    out.float().square().mean().backward()
    return [out.detach(), x.grad, *(p.grad for p in net.parameters())]


@pytest.mark.filterwarnings("ignore:plan. no module for")  # a preset names modules of other models too
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_eager(name, backend, monkeypatch):
    if name == "fp8":
        put_in_place(monkeypatch)
    net = model(name)
    undo = plan_of(name, net)
    assert (type(net[0].wi) is Float8Linear) == (name == "fp8")
    try:
        eager = outcome(net, net)
        torch._dynamo.reset()
        compiled = outcome(torch.compile(net, backend=backend, fullgraph=True), net)
    finally:
        undo()
    for one, other in zip(eager, compiled, strict=True):
        assert one.dtype is other.dtype
        if backend == "aot_eager":
            assert torch.equal(one, other)
        else:  # it keeps fp32 between operators that it fuses
            assert torch.allclose(one.float(), other.float(), atol=0.03, rtol=0.1)


IN_REGIONS = [name for name in NAMES if name not in {"fp8", "bf16-pure"}]
"""Presets that a region of code can be in: the others change the model's layers, or the optimizer."""


@pytest.mark.filterwarnings("ignore:plan. no module for")
@pytest.mark.parametrize("name", IN_REGIONS)
def test_a_region_computes_what_the_plan_computes_eager_and_compiled_and_leaves_nothing(name):
    net, torchs = model(name), [torch.get_autocast_dtype("cpu"), torch.backends.cuda.matmul.fp32_precision]
    with plan_in_effect(net, name):
        expected = outcome(net, net)
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    region = autocast("cpu", plan=name, model=net)
    for _ in range(2):
        for call in (net, compiled):
            found = outcome(region(call), net)
            # what a plan gives to code outside of autocast is fp32; within, it is what autocast gives
            assert torch.equal(found[0].float(), expected[0])
            for one, other in zip(found[1:], expected[1:], strict=True):
                # torch compiles the backward pass under the autocast that is around a compiled call, too
                assert torch.equal(one, other) if call is net else torch.allclose(one, other, atol=1e-4, rtol=0.01)
    assert not any("forward" in vars(module) for module in net.modules())
    assert [torch.get_autocast_dtype("cpu"), torch.backends.cuda.matmul.fp32_precision] == torchs


@pytest.mark.filterwarnings("ignore:plan. no module for")
def test_the_model_has_a_place_for_every_rule_on_modules():
    from ampwise.runtime.casts.plan_places import bind

    plan = presets()["fp16-safe"].plan
    matches = bind(model("fp16-safe"), plan).matches
    missing = [rule.module for index, rule in enumerate(plan.rules) if rule.module and not matches.get(index)]
    assert missing == ["*.router"]  # which the gate stands for


def test_a_plan_in_effect_may_be_an_evaluations():
    net = model("bf16")
    with plan_in_effect(net, "bf16"):
        low = outcome(net, net)
    assert not torch.equal(low[0], outcome(net, net)[0])
