"""What cuDNN may take from the allocator for a convolution, at most, while it computes.

cuDNN chooses its algorithm on the device, so that only a bound can be given. Two ways of computing take the most of
those that its heuristics choose: products in channels-last order, for which tensors that lie otherwise are copied, and
Winograd's transform of 3 x 3 filters in tiles of 4 x 4, which writes 36 numbers for 16 (Lavin and Gray 2016). With
``torch.backends.cudnn.benchmark`` others are tried once, and may take more.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.dispatch import find_overload

_TILE: Final = 36 / 16
"""Of a tile's numbers, what Winograd writes of each, of inputs and results alike."""
_FILTER: Final = 36 / 9
_FORWARD: Final[Any] = find_overload("convolution")
_BACKWARD: Final[Any] = find_overload("convolution_backward")
CONVOLUTIONS: Final = frozenset({_FORWARD, _BACKWARD})
"""Operators that call cuDNN for a convolution."""
ASSUMPTION: Final = (
    "a convolution's workspace takes at most copies of its tensors in channels-last order, or Winograd's tiles of them"
)


def workspace_bytes(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """The most that the convolution ``func(*args)``, which gave ``result``, takes beside its tensors.

    The backward pass computes the gradients of input and weight one after the other; either takes no more than this.
    """
    if func is _FORWARD:
        inputs, weight, outputs, strides = args[0], args[1], result, args[3]
    else:
        outputs, inputs, weight, strides = args[0], args[1], args[2], args[4]
    tensors: tuple[Tensor, ...] = (inputs, weight, outputs)
    return max(_copies(tensors), _winograd(inputs, weight, outputs, strides))


def _copies(tensors: Sequence[Tensor]) -> int:
    return sum(_bytes(one) for one in tensors if not _is_channels_last(one))


def _winograd(inputs: Tensor, weight: Tensor, outputs: Tensor, strides: Sequence[int]) -> int:
    is_fit = tuple(weight.shape[2:]) == (3, 3) and all(one == 1 for one in strides) and weight.shape[1] > 1
    if not is_fit or _is_channels_last(inputs):
        return 0
    return int(_TILE * (_bytes(inputs) + _bytes(outputs)) + _FILTER * _bytes(weight))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
