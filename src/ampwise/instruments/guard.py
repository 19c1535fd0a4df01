"""Says cheaply whether any number of many tensors is not finite, and of which tensor."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ampwise.instruments.origins import is_finite

T = TypeVar("T")


def is_any_bad(tensors: Sequence[Tensor]) -> bool:
    """Whether a number of the tensors is not finite. Waits for the device, once where all is well.

    Cost: one norm over all of them; a norm that overflows though every number is finite is looked into.
    """
    wide = [one.detach() for one in tensors if _has_norm(one)]
    others = [one for one in tensors if not _has_norm(one)]
    if wide and not math.isfinite(torch.nn.utils.get_total_norm(wide).item()) and not all(map(is_finite, wide)):
        return True
    return not all(map(is_finite, others))


def first_bad(pairs: Sequence[tuple[T, Tensor]]) -> T | None:
    """The first whose tensor is not finite; None where all are."""
    return next((owner for owner, tensor in pairs if not is_finite(tensor)), None)


def _has_norm(tensor: Tensor) -> bool:
    """Whether its norm says whether it is finite: half precision's overflows at once."""
    return tensor.dtype in {torch.float32, torch.bfloat16} and tensor.layout is torch.strided and tensor.numel() > 0
