"""Replaces autocast's products with a weight matrix, forward and backward, by a product of somebody else's making."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ampwise.compat.dispatch import Kernel, autocast_key, below_autocast, is_transformed, own_kernels, put_kernels
from ampwise.compat.dynamo import hide_from_dynamo
from ampwise.interpose.seam import Undo, once

Product = Callable[[Tensor, Tensor], Tensor]
"""Of (..., k) in autocast's dtype and (k, n) as it is, in the first's dtype; differentiable, called below autocast."""
_CASTABLE = frozenset({torch.float32, torch.bfloat16, torch.float16})


def replace_weight_products(product: Product, *, device_type: str = "cpu") -> Undo:
    """Let ``linear``, ``addmm``, ``mm`` and ``matmul`` by a 2-D tensor use ``product`` where autocast is on.

    A bias is added to the product's rounded result. Batched products of activations (attention), float64 and
    integers stay torch's, and so does what ``torch.func`` transforms, which cannot follow. Until the undo is called.
    """
    key = autocast_key(device_type)
    below = below_autocast(device_type)

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype(device_type)
        with below():
            return product(a.to(dtype), b)

    def add(product_: Tensor, bias: Tensor) -> Tensor:
        with below():
            return product_ + bias.to(product_.dtype)

    makers = {"linear": _linear, "addmm": _addmm, "mm": _matrices, "matmul": _matrices}
    originals = own_kernels(key, makers)
    kernels = {name: makers[name](original, multiply, add) for name, original in originals.items()}
    for kernel in kernels.values():
        hide_from_dynamo(kernel)
    return once(put_kernels(key, kernels))


def _linear(original: Kernel, multiply: Product, add: Product) -> Kernel:
    def kernel(keys: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        if not _are_ours(x, weight) or weight.dim() != 2:
            return original(keys, x, weight, bias)
        out = multiply(x, weight.t())
        return out if bias is None else add(out, bias)

    return kernel


def _addmm(original: Kernel, multiply: Product, add: Product) -> Kernel:
    def kernel(keys: Any, added: Tensor, a: Tensor, b: Tensor, **kwargs: Any) -> Any:
        if kwargs or not _are_ours(added, a, b):  # scaled ones are no layer's
            return original(keys, added, a, b, **kwargs)
        return add(multiply(a, b), added)

    return kernel


def _matrices(original: Kernel, multiply: Product, _: Product) -> Kernel:
    def kernel(keys: Any, a: Tensor, b: Tensor) -> Any:
        if not _are_ours(a, b) or b.dim() != 2 or a.dim() < 2:
            return original(keys, a, b)
        return multiply(a, b)

    return kernel


def _are_ours(*tensors: Tensor) -> bool:
    return not is_transformed() and all(
        tensor.dtype in _CASTABLE and (tensor.is_cpu or tensor.is_meta) for tensor in tensors
    )
