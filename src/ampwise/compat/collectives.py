# pyright: reportPrivateImportUsage=false
"""What ranks tell each other, by a way that every backend can carry: NCCL takes nothing that lies on the host.

Private: ``ProcessGroup._device_types``, the devices that a group can reduce on.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ampwise.compat.distributed import Group, is_running, size_of
from ampwise.records.lost_peer import LOST_PEER, has_lost_peer

T = TypeVar("T")


def carried_by(group: Group, device: torch.device) -> torch.device:
    """``device``, if the group can reduce what lies there; else one where it can, of this rank's own."""
    types = {one.type for one in _world(group)._device_types}
    if device.type in types or device.type == "meta" or not types:
        return device
    bound = getattr(_world(group), "bound_device_id", None)
    if bound is not None and bound.type in types:
        return bound
    name = next(iter(types))
    return torch.device(name, getattr(torch, name).current_device())


def all_reduced(numbers: Tensor, operation: Any, *, group: Group | None = None) -> Tensor:
    """The reduction over all ranks of the group, where the group can carry it; ``numbers`` may be overwritten."""
    carried = numbers.to(carried_by(group, numbers.device), non_blocking=True)
    with explained():
        dist.all_reduce(carried, operation, group=group)
    return carried


def broadcast(mine: T, *, group: Group | None = None, source: int = 0, near: torch.device | None = None) -> T:
    """What the rank ``source`` of the group has; anything that can be pickled.

    Args:
        mine: this rank's; only the source's counts.
        group: None is all ranks.
        source: its place in the group.
        near: where this rank computes. A backend that carries objects on a GPU takes the current one, which is the
            same one on every rank where the script names its device in ``.to(rank)`` alone.
    """
    box: list[Any] = [mine]
    with _computing(near), explained():
        dist.broadcast_object_list(box, group=group, group_src=source)
    return box[0]


def gathered(mine: T, *, group: Group | None = None, near: torch.device | None = None) -> list[T]:
    """What each rank of the group has, the first rank's first; where this process trains alone its own.

    Args:
        mine: this rank's; anything that can be pickled.
        group: None is all ranks.
        near: where this rank computes (see ``broadcast``).
    """
    if not is_running():
        return [mine]
    every: list[Any] = [None] * size_of(group)
    with _computing(near), explained():
        dist.all_gather_object(every, mine, group=group)
    return every


@contextmanager
def _computing(device: torch.device | None) -> Generator[None]:
    """Within it the device is the current one of its kind."""
    if device is None or device.type in {"cpu", "meta"}:
        yield
        return
    with getattr(torch, device.type).device(device):
        yield


def explain(error: BaseException) -> None:
    """Note under the error of a process that lost another one that it is not at fault."""
    if has_lost_peer(str(error)):
        error.add_note(LOST_PEER)


@contextmanager
def explained() -> Generator[None]:
    """``explain`` what a collective within raises."""
    try:
        yield
    except RuntimeError as error:
        explain(error)
        raise


def _world(group: Group | None) -> Group:
    return dist.group.WORLD if group is None else group
