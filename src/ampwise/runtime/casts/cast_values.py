"""Casts what goes into a module or an operator and what comes out, and rounds the gradient on its way back."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ampwise.emulate.rounding import round_to

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The formats that torch computes in, by name."""
LOW = frozenset({torch.bfloat16, torch.float16})
"""What autocast computes in."""


def cast_to(value: Any, dtype: torch.dtype) -> Any:
    """``value`` with the floating-point tensors in it, however nested, as ``dtype``; float64 is left alone.

    What needs no cast is returned as it is, by identity.
    """
    if isinstance(value, Tensor):
        return value if value.dtype is dtype or not _is_castable(value) else value.to(dtype)
    if isinstance(value, (tuple, list, dict)):
        return _rebuilt(value, lambda one: cast_to(one, dtype))
    return value


def widened(value: Any) -> Any:
    """``value`` with the tensors below fp32 in it as fp32."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in LOW else value
    if isinstance(value, (tuple, list, dict)):
        return _rebuilt(value, widened)
    return value


def with_gradient_in(value: Any, format_name: str) -> Any:
    """``value`` unchanged; the gradient that comes back through it is rounded to the format."""
    if isinstance(value, Tensor):
        return _RoundedGradient.apply(value, format_name) if value.requires_grad else value
    if isinstance(value, (tuple, list, dict)):
        return _rebuilt(value, lambda one: with_gradient_in(one, format_name))
    return value


def device_type_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of device of the first tensor among the arguments of a call; None where no argument tells."""
    for value in args:
        if isinstance(value, Tensor) and not value.is_meta:
            return value.device.type
    for value in (*kwargs.values(), *args):
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, Tensor) and not one.is_meta:
                return one.device.type
    return None


def _is_castable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to each element; itself where nothing changed."""
    if isinstance(value, dict):
        if type(value) is not dict:
            return _in_place_of(value, change)
        changed = {key: change(one) for key, one in value.items()}
        return changed if any(changed[key] is not one for key, one in value.items()) else value
    elements = [change(one) for one in value]
    if all(new is old for new, old in zip(elements, value, strict=True)):
        return value
    return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)


def _in_place_of(value: Any, change: Callable[[Any], Any]) -> Any:
    """A model's output class, which is a dict of its own: a copy of it, with ``change`` applied to each value."""
    changed = {key: change(one) for key, one in value.items()}
    if all(changed[key] is one for key, one in value.items()):
        return value
    return type(value)(**changed)


class _RoundedGradient(torch.autograd.Function):
    """The identity whose gradient is rounded."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, format_name: str) -> Tensor:
        """Pass the tensor on."""
        ctx.format_name = format_name
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Round the gradient."""
        (gradient,) = gradients
        dtype = DTYPES.get(ctx.format_name)
        if dtype is not None:
            return gradient.to(dtype).to(gradient.dtype), None
        return round_to(gradient.float(), ctx.format_name, saturate=True).to(gradient.dtype), None
