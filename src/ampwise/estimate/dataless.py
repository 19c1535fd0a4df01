"""Tensors of the host that are too large to be held: they are made and changed without data, as the GPU's are.

A model of 7e9 parameters that a script builds on the host and then moves would take 26 GiB of this machine's memory.
Its weights are numbers nobody looks at, so they are never written.
"""

import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from ampwise.compat.dispatch import find_overload
from ampwise.compat.imaginary import META, Place, computed_as_meta, imagine, is_plain_meta, meant_as_meta, place_of
from ampwise.compat.operators import operator_of
from ampwise.compat.tree import map_tensors
from ampwise.observe.frames import variables_of

if TYPE_CHECKING:
    from types import FrameType

HOST: Final = torch.device("cpu")
LARGE_WEIGHT_BYTES: Final = 64 * 2**10
"""From here on what a module's constructor makes has no data."""
LARGE_BYTES: Final = 64 * 2**20
"""From here on no floating-point tensor has."""
_FACTORIES: Final[frozenset[Any]] = frozenset(
    find_overload(name)
    for name in ("empty.memory_format", "zeros", "ones", "full", "rand", "randn", "rand.generator", "randn.generator")
)
_CONSTRUCTORS: Final = frozenset({"__init__", "reset_parameters", "_init_weights"})


def is_too_large(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``func`` would fill a tensor on the host that nobody needs the numbers of."""
    if func not in _FACTORIES or kwargs.get("device") not in {None, HOST}:
        return False
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point:
        return False
    num_bytes = dtype.itemsize
    for size in args[0]:
        num_bytes *= size
    return num_bytes >= LARGE_BYTES or (num_bytes >= LARGE_WEIGHT_BYTES and _is_in_constructor())


def run_without_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that makes or takes dataless tensors of the host, and no tensor of the GPU."""
    written: tuple[int, ...] = operator_of(func).written
    target = kwargs.get("out", args[0] if 0 in written else None)
    if isinstance(target, Tensor) and place_of(target) is Place.REAL:
        return target  # what is written into it would be numbers nobody knows
    keywords = {name: value for name, value in kwargs.items() if name not in {"device", "pin_memory"}}
    if "generator" in keywords:
        keywords["generator"] = None
    if kwargs.get("device") is not None or func in _FACTORIES:
        keywords["device"] = META
    args, keywords = map_tensors(_dataless, (args, keywords))
    with computed_as_meta():
        made = func(*args, **keywords)
    return map_tensors(lambda one: imagine(one, on=HOST) if is_plain_meta(one) else one, made)


def zeros_without_data(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of ``tensor`` on the host, of numbers nobody knows."""
    with meant_as_meta():
        return imagine(torch.empty(tensor.shape, dtype=dtype, device=META), on=HOST)


def _dataless(tensor: Tensor) -> Tensor:
    if place_of(tensor) is not Place.REAL or tensor.dim() == 0:
        return tensor
    return imagine(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META), on=HOST)


def _is_in_constructor() -> bool:
    """Whether a module's constructor is on the stack."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 # inspect.currentframe is the same with a detour
    while frame is not None:
        code = frame.f_code
        if code.co_name in _CONSTRUCTORS and code.co_varnames[:1] == ("self",):
            owner = variables_of(frame).get("self")
            if isinstance(owner, nn.Module):
                return True
        frame = frame.f_back
    return False
