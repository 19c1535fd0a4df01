"""Stands in for torchao's fp8 layers: other objects of another class, which compute what torchao's do.

That they do is tested where torchao is installed: see tests/unit/runtime/casts/test_float8.py.
"""

import sys
from types import ModuleType

import torch
from torch import nn

from ampwise.emulate.recipes import get_recipe
from ampwise.emulate.scaled_product import scaled_product


@torch._dynamo.allow_in_graph  # as torchao's is
def product(x, weight):
    return scaled_product(get_recipe("fp8"))(x, weight)


class Float8Linear(nn.Linear):
    """A linear layer in fp8; in autocast's dtype, as torchao's is on CUDA."""

    def forward(self, x):
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        out = product(x, self.weight.t())
        return out if self.bias is None else out + self.bias.to(out.dtype)


def convert_to_float8_training(module, *, module_filter_fn, config):
    assert config == {"pad_inner_dim": True}
    for path, child in list(module.named_modules()):
        if isinstance(child, nn.Linear) and module_filter_fn(child, path):
            new = Float8Linear(child.in_features, child.out_features)
            new.weight, new.bias = child.weight, child.bias
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, new)
    return module


def put_in_place(monkeypatch):
    """Let ``import torchao`` find the stand-in, and a CPU be taken for its hardware."""
    from ampwise.runtime.casts import plan_places

    package = ModuleType("torchao.float8")
    package.convert_to_float8_training = convert_to_float8_training
    package.Float8LinearConfig = dict
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", package)
    monkeypatch.setattr(plan_places, "float8_fault", lambda _: None)
