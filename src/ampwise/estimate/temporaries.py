"""Memory that a CUDA kernel allocates for itself and frees before it returns, so that no tensor shows it.

Read in torch's kernels (``aten/src/ATen/native``), file by file as named below. Left out is what depends on the GPU's
number of multiprocessors or on CUB: up to 8 MiB in the backward pass of layer norm over more than 65,536 rows, and the
work areas of sort, topk, unique, cumsum and large reductions.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.dispatch import find_overload

_REDUCTION_BYTES: Final = 512
"""A block for a reduction's partial results."""
_REDUCED: Final = (_REDUCTION_BYTES, _REDUCTION_BYTES)
_FLOAT_BYTES: Final = 4
_FLASH_ROWS, _FLASH_COLUMNS = 128, 32
"""What the flash kernel rounds the queries' length and the heads' size up to."""
_EFFICIENT_TILE: Final = 64
_FEW_INDICES: Final = 3072
"""Up to so many the gradient of an embedding is summed without sorting them."""
_ROWS_PER_THREAD: Final = 10
Sizes = Callable[[tuple[Any, ...]], tuple[int, ...]]


def _loss_of_each(args: tuple[Any, ...]) -> tuple[int, ...]:
    """With any reduction but none, the loss of every element is held, and two blocks for its sum (``Loss.cpp``).

    Without them the official AMP recipe's peak on a T4 is 8,389,632 bytes off; with them it is exact.
    """
    prediction, target = args[:2]
    if len(args) > 2 and args[2] == 0:
        return ()
    size = torch.broadcast_shapes(prediction.shape, target.shape).numel()
    return (size * torch.result_type(prediction, target).itemsize, *_REDUCED)


def _loss_in_place(position: int) -> Sizes:
    """Of losses that are reduced into the tensor of every element's, which stays: the blocks for the sum alone."""
    return lambda args: _REDUCED if len(args) <= position or args[position] != 0 else ()


def _embedding_backward(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Sorted indices and where they came from, their segments, and fp32 sums of up to ten rows each.

    ``cuda/Embedding.cu`` and ``cuda/EmbeddingBackwardKernel.cu``.
    """
    grad, indices, num_weights, _, by_frequency = args
    copied = () if grad.is_contiguous() else (_bytes(grad),)
    num, size = indices.numel(), indices.element_size()
    if num <= _FEW_INDICES and not by_frequency:
        return copied
    segments = min(num, num_weights)
    partial = num // _ROWS_PER_THREAD + segments
    sorting = (num * size,) * (3 + by_frequency)
    width = grad.shape[-1] * max(_FLOAT_BYTES, grad.element_size())
    return (*copied, *sorting, *_REDUCED, segments * size, segments * size, partial * size, partial * width)


def _index_put(args: tuple[Any, ...]) -> tuple[int, ...]:
    """To add at indices they are sorted: as one number each, in order, where they came from, and a count to sort by.

    ``cuda/Indexing.cu``: this is the backward pass of ``x[indices]``.
    """
    indices, is_added = args[1], len(args) > 3 and args[3]
    shapes = [one.shape for one in indices if one is not None]
    if not is_added or not shapes:
        return ()
    num = torch.broadcast_shapes(*shapes).numel()
    return (num * torch.int64.itemsize,) * 4


def _flash_backward(args: tuple[Any, ...]) -> tuple[int, ...]:
    """The queries' gradient in fp32 and a number a row; with fewer heads of keys, their gradients for every head.

    ``transformers/cuda/flash_attn/flash_api.cpp``.
    """
    query, key = args[1], args[2]
    batch, heads, length, size = query.shape
    rows = batch * heads * _rounded(length, _FLASH_ROWS) * _FLOAT_BYTES
    summed = rows * _rounded(size, _FLASH_COLUMNS)
    of_every_head = batch * heads * key.shape[2] * size * key.element_size()
    return (rows, summed, *((of_every_head,) * 2 if key.shape[1] != heads else ()))


def _efficient_backward(args: tuple[Any, ...]) -> tuple[int, ...]:
    """A number a row, for which fp32 multiplies results and gradients, and the queries' gradient in fp32 tiles.

    ``transformers/cuda/attention_backward.cu`` and ``mem_eff_attention/kernel_backward.h``; there a tile has 64 rows
    and columns, for some sizes of heads 128.
    """
    grad, query = args[0], args[1]
    batch, heads, length, size = query.shape
    delta = batch * heads * length * _FLOAT_BYTES
    deltas = (_bytes(grad), delta, delta) if query.dtype is torch.float32 else (delta,)
    tiles = batch * heads * _rounded(length, _EFFICIENT_TILE) * _rounded(size, _EFFICIENT_TILE)
    return (*deltas, tiles * _FLOAT_BYTES)


def _group_norm_backward(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Sums over each channel and each group of each sample, in fp32 at least (``cuda/group_norm_kernel.cu``)."""
    tensor, samples, channels, groups = args[1], args[5], args[6], args[8]
    size = max(_FLOAT_BYTES, tensor.element_size())
    return (samples * channels * size,) * 3 + (samples * groups * size,) * 2


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


TEMPORARIES: Final[Mapping[Any, Sizes]] = MappingProxyType(
    {
        torch.ops.aten.mse_loss.default: _loss_of_each,
        torch.ops.aten.smooth_l1_loss.default: _loss_of_each,
        torch.ops.aten.huber_loss.default: _loss_of_each,
        torch.ops.aten.binary_cross_entropy.default: _loss_in_place(3),
        torch.ops.aten.soft_margin_loss.default: _loss_in_place(2),
        torch.ops.aten.embedding_dense_backward.default: _embedding_backward,
        torch.ops.aten.index_put_.default: _index_put,
        torch.ops.aten.index_put.default: _index_put,
        find_overload("_index_put_impl_"): _index_put,
        find_overload("_scaled_dot_product_flash_attention_backward"): _flash_backward,
        find_overload("_scaled_dot_product_efficient_attention_backward"): _efficient_backward,
        torch.ops.aten.native_group_norm_backward.default: _group_norm_backward,
    }
)
"""By operator: from its positional arguments to the sizes in bytes."""

MATRIX_PRODUCTS: Final = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
        find_overload("_addmm_activation"),
    }
)
"""Operators that call cuBLAS."""
