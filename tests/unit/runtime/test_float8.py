"""Linear layers in fp8, by a torchao that is not there and by one that is."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from ampwise._base.errors import CannotRunError
from ampwise.runtime import float8, plan_places
from ampwise.runtime.casting import apply_plan
from ampwise.runtime.float8 import float8_fault

CUDA = torch.device("cuda")


class Float8Linear(nn.Linear):
    """Stands in for torchao's: same parameters, another class."""


def convert_to_float8_training(module, *, module_filter_fn, config=None):
    for path, child in list(module.named_modules()):
        if isinstance(child, nn.Linear) and module_filter_fn(child, path):
            new = Float8Linear(child.in_features, child.out_features)
            new.weight, new.bias = child.weight, child.bias
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, new)
    return module


@pytest.fixture
def torchao(monkeypatch):
    package = ModuleType("torchao.float8")
    package.convert_to_float8_training = convert_to_float8_training
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", package)
    monkeypatch.setattr(plan_places, "float8_fault", lambda _: None)


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
