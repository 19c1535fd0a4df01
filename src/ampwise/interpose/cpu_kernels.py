"""Lets a CPU's products be computed as a tensor core does: narrow operands, sums in fp32, one rounding at the end.

torch's CPU kernels for fp16 take 10 to 130 times as long as those for fp32, or do not exist. The kernels stand under
the CPU's own key, below autograd and autocast, so forward, backward, TorchScript and compiled graphs meet them alike.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ampwise.compat.dispatch import Kernel, own_kernels, put_kernels
from ampwise.interpose.cpu_operators import OPERATORS, Operator
from ampwise.interpose.seam import Undo, once

_KEY = "CPU"
_WRITTEN = ("out", "grad_input")
"""Names under which an operator is given the tensor for its result."""


def compute_in_fp32(dtype: torch.dtype) -> Undo:
    """Let the CPU's products of ``dtype`` tensors be taken in fp32 and rounded once, until the undo is called.

    Dtypes, promotion and memory stay those of ``dtype``, and so do overflow and underflow of every result.
    """
    return _replace({name: partial(_lifting(name), row=row, dtype=dtype) for name, row in OPERATORS.items()})


def round_factors(rounded: Callable[[Tensor], Tensor]) -> Undo:
    """Let the CPU's products of fp32 matrices be taken of ``rounded`` factors, until the undo is called."""
    makers = {
        name: partial(_rounding, rounded=rounded, factors=frozenset(row.factors))
        for name, row in OPERATORS.items()
        if row.factors
    }
    return _replace(makers)


def _replace(makers: dict[str, Callable[[Kernel], Kernel]]) -> Undo:
    originals = own_kernels(_KEY, makers, composite=True)
    return once(put_kernels(_KEY, {name: makers[name](original) for name, original in originals.items()}))


def _rounding(original: Kernel, *, rounded: Callable[[Tensor], Tensor], factors: frozenset[int]) -> Kernel:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        narrow = [
            rounded(value) if i in factors and isinstance(value, Tensor) and value.dtype is torch.float32 else value
            for i, value in enumerate(args)
        ]
        return original(keys, *narrow, **kwargs)

    return kernel


def _lifting(name: str) -> Callable[..., Kernel]:
    """Who makes the kernel of the overload: it is given a tensor for its result, or writes to its first, or neither."""
    packet, _, overload = name.partition(".")
    if overload.endswith(_WRITTEN):
        return _lifted_into
    return _lifted_in_place if packet.endswith("_") else _lifted


def _lifted(original: Kernel, *, row: Operator, dtype: torch.dtype) -> Kernel:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_narrow(args, kwargs, row, dtype):
            return original(keys, *args, **kwargs)
        result = original(keys, *_lift(args, dtype), **_lift_named(kwargs, dtype))
        if isinstance(result, Tensor):
            return result.to(dtype)
        num = len(result) if row.num_narrow is None else row.num_narrow
        return tuple(one.to(dtype) if i < num and one is not None else one for i, one in enumerate(result))

    return kernel


def _lifted_in_place(original: Kernel, *, row: Operator, dtype: torch.dtype) -> Kernel:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_narrow(args, kwargs, row, dtype):
            return original(keys, *args, **kwargs)
        return args[0].copy_(original(keys, *_lift(args, dtype), **kwargs))

    return kernel


def _lifted_into(original: Kernel, *, row: Operator, dtype: torch.dtype) -> Kernel:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        name = next(name for name in _WRITTEN if name in kwargs)
        given: Tensor = kwargs[name]
        if given.dtype is not dtype or not _is_narrow(args, kwargs, row, dtype):
            return original(keys, *args, **kwargs)
        wide = torch.empty_like(given, dtype=torch.float32)
        result = original(keys, *_lift(args, dtype), **(kwargs | {name: wide}))
        return given.resize_(result.shape).copy_(result)

    return kernel


def _is_narrow(args: tuple[Any, ...], kwargs: dict[str, Any], row: Operator, dtype: torch.dtype) -> bool:
    """Whether the call is one in ``dtype``. One that mixes dtypes goes to torch, to be refused as it always was."""
    return (
        args[0].dtype is dtype
        and kwargs.get("dtype") is None
        and all(
            value.dtype is dtype or i in row.fp32 or not value.is_floating_point()
            for i, value in enumerate(args)
            if isinstance(value, Tensor)
        )
    )


def _lift(args: tuple[Any, ...], dtype: torch.dtype) -> list[Any]:
    return [value.float() if isinstance(value, Tensor) and value.dtype is dtype else value for value in args]


def _lift_named(kwargs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return dict(zip(kwargs, _lift(tuple(kwargs.values()), dtype), strict=True)) if kwargs else kwargs
