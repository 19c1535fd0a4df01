"""Linear layers in fp8: torchao's, where it is installed and the device has the hardware."""

from collections.abc import Collection
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ampwise.interpose.seam import Undo, once

_CAPABILITY = (8, 9)
"""Of the first CUDA devices with fp8 tensor cores."""
_MULTIPLE = 16
"""Of which the hardware wants a product's dimensions."""


def float8_fault(device: torch.device) -> str | None:
    """Why linear layers on ``device`` cannot be computed in fp8; None where they can."""
    if device.type != "cuda":
        return f"{device.type.upper()} has no hardware for it"
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        name = torch.cuda.get_device_name(device)
        return f"{name} has no hardware for it: that begins with compute capability {'.'.join(map(str, _CAPABILITY))}"
    return (
        None if find_spec("torchao") is not None else "torchao, which computes in it, is missing: pip install torchao"
    )


def fits_float8(module: nn.Module) -> bool:
    """Whether the module is a linear layer of dimensions that the hardware takes."""
    return type(module) is nn.Linear and not (module.in_features % _MULTIPLE or module.out_features % _MULTIPLE)


def linears_in_float8(model: nn.Module, paths: Collection[str]) -> Undo:
    """Put torchao's fp8 layers, of the same parameters and hooks, in the place of those at ``paths``; returns the undo.

    torchao's conversion also changes what inductor writes for minima and maxima on a GPU, for the rest of the process:
    the same numbers, around a fault of Triton's.
    """
    before = {path: model.get_submodule(path) for path in paths}

    def is_meant(_: nn.Module, path: str) -> bool:
        return path in before

    torchao: Any = import_module("torchao.float8")
    # the product for the weights' gradient sums over the rows of a batch, which need not be a multiple of 16
    config = torchao.Float8LinearConfig(pad_inner_dim=True)
    torchao.convert_to_float8_training(model, module_filter_fn=is_meant, config=config)
    stack = ExitStack()
    for path, module in before.items():
        _share_state(module, model.get_submodule(path))
        parent, _, name = path.rpartition(".")
        stack.callback(setattr, model.get_submodule(parent), name, module)
    return once(stack.close)


def _share_state(module: nn.Module, new: nn.Module) -> None:
    """Let both have the same parameters, hooks and mode, whichever is changed: torchao hands on weights only."""
    vars(new).update({name: value for name, value in vars(module).items() if name != "forward"})
