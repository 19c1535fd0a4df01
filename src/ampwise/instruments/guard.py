"""Says cheaply whether any number of many tensors is not finite, and of which tensor."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ampwise.compat.distributed import local_of
from ampwise.compat.fused_step import norms_of
from ampwise.instruments.origins import is_finite

T = TypeVar("T")
_WIDE: Final = frozenset({torch.float32, torch.bfloat16})
"""Of them a norm says whether they are finite: half precision's overflows at once."""


def is_any_bad(tensors: Sequence[Tensor]) -> bool:
    """Whether a number of the tensors is not finite. Waits for the device, once where all is well.

    Of shards this rank's are looked at.
    Cost: a norm of each; one that overflows though every number is finite is looked into.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    others: list[Tensor] = []
    for one in map(local_of, tensors):
        dtype = one.dtype
        has_norm = dtype in _WIDE and one.layout is torch.strided and not is_lazy(one)
        (alike[dtype, one.device] if has_norm else others).append(one)
    return any(map(_is_one_bad, alike.values())) or not all(map(is_finite, others))


def first_bad(pairs: Sequence[tuple[T, Tensor]]) -> T | None:
    """The first whose tensor is not finite; None where all are."""
    return next((owner for owner, tensor in pairs if not is_finite(tensor)), None)


def _is_one_bad(alike: list[Tensor]) -> bool:
    with torch.no_grad():
        norms = norms_of(alike)
    return not is_finite(norms) and not all(map(is_finite, alike))
