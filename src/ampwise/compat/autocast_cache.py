# pyright: reportPrivateImportUsage=false
"""What ampwise knows of autocast's cache of weight casts: who clears it when, and when an entry is stale."""

from collections.abc import Iterable

import torch
from torch import Tensor

Versions = list[tuple[int, int]]


def enter_level() -> int:
    """Count one more autocast region around this thread's code; returns how many there are now.

    The cache is cleared when the last one is left.
    """
    return torch.autocast_increment_nesting()


def leave_level() -> None:
    """Undo one ``enter_level``."""
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


def num_levels() -> int:
    """How many autocast regions this thread is in."""
    count = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return count


def versions_of(params: Iterable[Tensor]) -> Versions:
    """What changes whenever a parameter is written to in place or gets other memory.

    A write through ``param.data`` changes nothing of it.
    """
    return [(param._version, param.data_ptr()) for param in params]


def has_cacheable_weights(params: Iterable[Tensor]) -> bool:
    """Whether all are tensors of torch's own: a shard's memory comes and goes."""
    return all(type(param) in (Tensor, torch.nn.Parameter) for param in params)
