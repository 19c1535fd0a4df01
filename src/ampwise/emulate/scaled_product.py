"""A product in fp8 with one scale a tensor: torchao's ``tensorwise`` recipe, computed exactly in fp32.

The scale is the present one: ``max / amax`` of the tensor at hand. fp8 numbers times fp8 numbers are exact in fp32, so
only the order of the sums differs from a GPU's.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ampwise.emulate.recipes import Recipe

_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_SMALLEST_AMAX = 1e-12
"""torchao's bound, which keeps an all-zero tensor's scale finite."""


def scaled_product(recipe: Recipe) -> Callable[[Tensor, Tensor], Tensor]:
    """The product of (..., k) and (k, n) tensors as ``recipe`` has it, in the first one's dtype.

    A weight in fp32 is rounded once, from fp32, as torchao does.
    """
    forward, gradients = _DTYPES[recipe.name], _DTYPES[recipe.gradients]

    def product(a: Tensor, b: Tensor) -> Tensor:
        return cast("Tensor", _ScaledProduct.apply(a, b, forward, gradients))

    return product


def quantize(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``tensor * scale`` in an fp8 ``dtype``, and the scale: that with which the largest magnitude becomes ``max``."""
    limit = torch.finfo(dtype).max
    scale = (limit / _amax(tensor).double().clamp(min=_SMALLEST_AMAX)).float()
    return (tensor.float() * scale).clamp(-limit, limit).to(dtype), scale


def _amax(tensor: Tensor) -> Tensor:
    """The largest magnitude; 0 for an empty tensor, NaN where there is one."""
    if not tensor.numel():
        return tensor.new_zeros(())
    low, high = torch.aminmax(tensor)
    return torch.maximum(-low, high)


def _multiply(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, dtype: torch.dtype) -> Tensor:
    return ((a.float() @ b.float()) * (scale_a.reciprocal() * scale_b.reciprocal())).to(dtype)


class _ScaledProduct(torch.autograd.Function):
    """Keeps its factors in fp8 for the backward pass, in which the gradient is quantized once for both products."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, forward: torch.dtype, gradients: torch.dtype) -> Tensor:
        (a8, scale_a), (b8, scale_b) = quantize(a, forward), quantize(b, forward)
        ctx.save_for_backward(a8, scale_a, b8, scale_b)
        ctx.gradients = gradients
        return _multiply(a8, scale_a, b8, scale_b, a.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - once_differentiable makes ctx positional
        ctx: Any, *gradients: Any
    ) -> Any:
        a8, scale_a, b8, scale_b = ctx.saved_tensors
        (gradient,) = gradients
        with torch.autocast(gradient.device.type, enabled=False):
            g8, scale_g = quantize(gradient, ctx.gradients)
            of_a = of_b = None
            if ctx.needs_input_grad[0]:
                of_a = _multiply(g8, scale_g, b8.t(), scale_b, gradient.dtype)
            if ctx.needs_input_grad[1]:
                rows, columns = a8.reshape(-1, a8.shape[-1]).t(), g8.reshape(-1, g8.shape[-1])
                of_b = _multiply(rows, scale_a, columns, scale_g, gradient.dtype)
        return of_a, of_b, None, None
