# pyright: reportPrivateImportUsage=false
"""Which of torch's functions and methods spell an operator, as a function mode is given them.

Private names: ``torch._C._nn``, ``_special``, ``_linalg`` and ``_fft``, where torch keeps functions that it shows
elsewhere; ``OpOverloadPacket``; ``torch._C.DisableTorchFunction``; ``torch.overrides._get_current_function_mode``.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode

_HOMES = (torch, torch.Tensor, functional, torch.special, torch.linalg, torch.fft)
_PRIVATE_HOMES = ("_nn", "_special", "_linalg", "_fft")
_DUNDERS = {"div": "truediv", "floor_divide": "floordiv", "remainder": "mod"}
_MORE = {
    "_native_multi_head_attention": ("multi_head_attention_forward",),
    "index_put_": ("__setitem__",),
    "pow": ("square",),
}
"""Spellings under another name than the operator's: they are composites that are seen as one call."""

without_modes = torch._C.DisableTorchFunction
"""A context manager: within it this thread's calls pass function modes and subclasses' ``__torch_function__`` by."""


def functions_of(operator: str, spellings: Iterable[str] = ()) -> frozenset[Any]:
    """What calls ``operator``: functions, methods, Python's own operators and ``torch.ops``.

    Args:
        operator: As aten names it, ``softmax``; or ``namespace::name``, an operator of the user's own.
        spellings: What else it is called.
    """
    namespace, _, name = operator.rpartition("::")
    packet = getattr(getattr(torch.ops, namespace or "aten"), name, None)
    found = {packet, *_overloads(packet)}
    if not namespace:
        found |= {getattr(home, word, None) for word in _words(name, spellings) for home in _homes()}
    return frozenset(one for one in found if callable(one) and not isinstance(one, type))


def is_innermost_function_mode(mode: TorchFunctionMode) -> bool:
    """Whether ``mode`` is the one this thread entered last, so that leaving it disturbs no other."""
    return _get_current_function_mode() is mode


def writes_in_place(function: Any) -> bool:
    """Whether the function writes to its first argument: ``scatter_add_``, ``+=``, ``x[i] = y``."""
    name = getattr(function, "__name__", "").partition(".")[0]
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in {"__invert__", "__index__"})
    return name.endswith("_")


def _homes() -> Iterator[Any]:
    yield from _HOMES
    for name in _PRIVATE_HOMES:
        yield getattr(torch._C, name)


def _overloads(packet: Any) -> Iterator[Any]:
    if packet is not None:
        for overload in packet.overloads():
            yield getattr(packet, overload)


def _words(name: str, spellings: Iterable[str]) -> Iterator[str]:
    """The operator's name as torch's modules spell it, in place too: ``softmax``, ``softmax_``, ``__matmul__``."""
    for word in (name, *_MORE.get(name, ()), *spellings):
        yield word
        if not word.endswith("_"):
            yield f"{word}_"
        for prefix in ("special_", "linalg_", "fft_"):
            if word.startswith(prefix):
                yield word.removeprefix(prefix)
    for side in ("", "r", "i"):
        yield f"__{side}{name}__"
        yield f"__{side}{_DUNDERS.get(name, name)}__"
