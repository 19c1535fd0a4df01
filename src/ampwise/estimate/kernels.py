"""What operators return whose shapes torch knows on a real device alone."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.dispatch import find_overload
from ampwise.compat.imaginary import Place, place_of
from ampwise.estimate.recurrent import RECURRENT_KERNELS

_CONVOLUTION: Final[Any] = find_overload("convolution")


def _like_second(*args: Any, **_: Any) -> Tensor:
    """The gradient of a loss is as large as what went in."""
    given: Tensor = args[1]
    return given.new_empty(given.shape)


def _convolution(tensor: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """CuDNN writes channels last where either operand has them last; without a device torch writes them first."""
    made: Tensor = _CONVOLUTION(tensor, weight, *args, **kwargs)
    are_last = tensor.dim() == 4 and any(
        one.is_contiguous(memory_format=torch.channels_last) and not one.is_contiguous() for one in (tensor, weight)
    )
    return made.contiguous(memory_format=torch.channels_last) if are_last else made


def _ctc_loss(probabilities: Tensor, targets: Tensor, *lengths: Any, **_: Any) -> tuple[Tensor, Tensor]:
    """The loss of each sequence, and the table of its paths: the target's symbols with blanks around each."""
    num_steps, num_sequences = probabilities.shape[:2]
    is_known = place_of(lengths[1]) is Place.REAL
    longest = max(lengths[1].tolist()) if is_known else targets.shape[-1]
    table = probabilities.new_empty((num_sequences, num_steps, 2 * longest + 1))
    return probabilities.new_empty(num_sequences), table


def _reduced_loss(operator: Any) -> Callable[..., Tensor]:
    """Torch computes every element's loss into the result, makes it a single number, and keeps the memory.

    https://github.com/pytorch/pytorch/issues/185647
    """

    def loss(prediction: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = operator(prediction, target, *args, **kwargs)
        if made.dim() > 0:
            return made
        return made.new_empty(torch.broadcast_shapes(prediction.shape, target.shape)).resize_(())

    return loss


def _keeps_elements(operator: Any) -> bool:
    """Whether this torch does so; the code is the same on every device."""
    ones = torch.ones(2, device="cpu", dtype=torch.float32)
    made: Tensor = operator(ones, ones)
    return made.untyped_storage().nbytes() > made.element_size()


_LOSSES: Final = tuple(
    find_overload(name) for name in ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
)
KERNELS: Final[Mapping[Any, Callable[..., Any]]] = MappingProxyType(
    {
        **RECURRENT_KERNELS,
        **{operator: _reduced_loss(operator) for operator in _LOSSES if _keeps_elements(operator)},
        _CONVOLUTION: _convolution,
        find_overload("_ctc_loss.Tensor"): _ctc_loss,
        find_overload("_ctc_loss_backward.Tensor"): _like_second,
        find_overload("_ctc_loss_backward"): _like_second,
        find_overload("multi_margin_loss_backward"): _like_second,
        find_overload("multilabel_margin_loss_backward"): _like_second,
    }
)
"""By operator: results of the right sizes."""
