"""Linear layers in fp8, by a stand-in for torchao, and by torchao itself where it is installed."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from ampwise._base.errors import CannotRunError
from ampwise.emulate.emulation import emulated
from ampwise.plan.plan import Plan, Rule
from ampwise.runtime.casts import float8, plan_places
from ampwise.runtime.casts.casting import apply_plan
from ampwise.runtime.casts.float8 import float8_fault
from torchao_stand_in import Float8Linear, put_in_place

CUDA = torch.device("cuda")


@pytest.fixture
def torchao(monkeypatch):
    put_in_place(monkeypatch)


def model():
    parts = {"a": nn.Linear(16, 32), "odd": nn.Linear(32, 31), "b": nn.Linear(31, 16), "lm_head": nn.Linear(16, 16)}
    inner = nn.Sequential()
    for name, part in parts.items():
        inner.add_module(name, part)
    return nn.Sequential(inner)


@pytest.mark.usefixtures("torchao")
def test_the_presets_layers_become_torchaos_and_come_back():
    net = model()
    before, params = list(net.modules()), list(net.parameters())
    undo = apply_plan(net, "fp8")
    assert {name for name, one in net.named_modules() if isinstance(one, Float8Linear)} == {"0.a"}
    assert all(p is q for p, q in zip(net.parameters(), params, strict=True))
    assert net(torch.ones(2, 16)).isfinite().all()
    undo()
    assert all(one is other for one, other in zip(net.modules(), before, strict=True))


def test_a_cpu_is_told_of_emulation():
    with pytest.raises(CannotRunError, match=r"rules\[0\]\.compute: fp8_e4m3 .* CPU has no hardware.*--emulate fp8"):
        apply_plan(model(), "fp8")


@pytest.mark.parametrize(
    ("capability", "said"),
    [((8, 0), "GPU has no hardware for it: that begins with compute capability 8.9"), ((9, 0), "pip install torchao")],
)
def test_what_is_missing_is_named(monkeypatch, capability, said):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")
    monkeypatch.setattr(float8, "find_spec", lambda _: None)
    assert said in float8_fault(CUDA)
    monkeypatch.setattr(float8, "find_spec", lambda _: object())
    assert (float8_fault(CUDA) is None) == (capability == (9, 0))


@pytest.mark.usefixtures("torchao")
def test_hooks_mode_and_formats_go_over_to_torchaos_layers_and_back():
    net, called = model().eval(), []
    net[0].a.register_forward_hook(lambda module, *_: called.append(type(module)))
    rules = Rule(module="*.a", compute="fp32", output="fp16"), Rule(op="linear", compute="fp8")
    undo = apply_plan(net, Plan(default="bf16", rules=rules))
    assert not net[0].a.training
    net[0].a.register_forward_hook(lambda _, __, out: called.append(out.dtype))
    net(torch.ones(2, 16))
    assert called == [Float8Linear, torch.float16]
    undo()
    called.clear()
    net(torch.ones(2, 16))
    assert called == [nn.Linear, torch.float32]


@pytest.mark.filterwarnings("ignore:torch.get_autocast_gpu_dtype")  # which torchao calls
@pytest.mark.filterwarnings("ignore:plan. no module for")  # lm_head, of language models
@pytest.mark.leaves_behind("torchao changes inductor")
def test_torchaos_own_layers_compute_what_is_emulated(monkeypatch):
    """torchao computes in fp8 on a CPU too, slowly; it asks for CUDA's autocast, whatever the device."""
    pytest.importorskip("torchao")
    monkeypatch.setattr(plan_places, "float8_fault", lambda _: None)
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), torch.randn(17, 16)
    with emulated("fp8"):
        expected = step(net, x, torch.autocast("cpu", torch.bfloat16))
    before = list(net.modules())
    undo = apply_plan(net, "fp8")
    assert [type(one).__name__ for one in net] == ["Float8Linear", "ReLU", "Float8Linear"]
    found = step(net, x, cudas_autocast())
    undo()
    assert all(one is other for one, other in zip(net.modules(), before, strict=True))
    for one, other in zip(found, expected, strict=True):  # sums are made in another order
        assert (one - other).norm() < 1e-3 * other.norm()


@contextmanager
def cudas_autocast():
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)


def step(net, x, context):
    net.zero_grad()
    with context:
        out = net(x)
    out.float().square().mean().backward()
    return [out.detach().float(), *(one.grad.clone() for one in net.parameters())]


@pytest.mark.gpu
def test_torchao_trains_in_fp8():
    pytest.importorskip("torchao")
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
    if float8_fault(CUDA) is not None:
        pytest.skip(float8_fault(CUDA))
    undo = apply_plan(net, "fp8")
    net(torch.randn(32, 64, device="cuda")).square().mean().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    undo()
