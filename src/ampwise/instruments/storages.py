"""The storages of one step: when each was born and died, and what it was for."""

import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch

from ampwise.compat.memory import storages_of
from ampwise.observe.frames import Line
from ampwise.observe.modules import ModuleName
from ampwise.observe.operators import Spot
from ampwise.records.memory import CategoryBytes, MemoryCategory, MemoryOwner, MemoryPoint
from ampwise.records.site import Phase, Site

_MAX_POINTS: Final = 200
_MAX_OWNERS: Final = 20


@dataclass(slots=True, kw_only=True, eq=False)
class Storage:
    """One storage."""

    device: torch.device
    size: int
    born: Spot | None
    """None for one that was there before the step."""
    line: Line | None
    category: MemoryCategory | None = None
    """None until it is known."""
    module: ModuleName | None = None
    """Whose parameter, gradient or state it is."""

    @property
    def purpose(self) -> MemoryCategory:
        """What it is for, as far as is known by now."""
        return self.category or (MemoryCategory.OTHER if self.born is None else MemoryCategory.TEMPORARY)

    @property
    def site(self) -> Site:
        """Where it was born, or to which module it belongs."""
        if self.module is not None:
            return Site(phase=Phase.OTHER, module=self.module.path)
        return self.born.site(self.line) if self.born is not None else Site(phase=Phase.OTHER)


@dataclass(frozen=True, slots=True)
class _Change:
    storage: Storage
    delta: int
    phase: Phase


class StorageLog:
    """Notes every storage's birth, death and change of size, in order. Keeps none of them alive.

    Law: at every moment the sizes of what is live add up to the changes so far.
    """

    def __init__(self) -> None:
        self._live: dict[int, tuple[weakref.ref[Any], Storage]] = {}
        self._changes: list[_Change] = []
        self.phase = Phase.OTHER
        """The part of the step that is going on."""

    def see(self, tensor: torch.Tensor, *, born: Spot | None = None, line: Line | None = None) -> list[Storage]:
        """The storages of ``tensor``, those not seen before born now."""
        return [self._see(storage, born, line) for storage in storages_of(tensor) if storage.device.type != "meta"]

    def is_new(self, tensor: torch.Tensor) -> bool:
        """Whether some storage of ``tensor`` was not seen before."""
        return any(id(storage) not in self._live for storage in storages_of(tensor))

    def close(self) -> None:
        """Note no death any more."""
        self._live.clear()

    @property
    def live(self) -> list[Storage]:
        """What is live now."""
        return [storage for _, storage in list(self._live.values())]

    def device(self) -> torch.device | None:
        """The accelerator whose live storages reached the highest sum, else the CPU; None where nothing was seen."""
        peaks: dict[torch.device, int] = {}
        sums: dict[torch.device, int] = defaultdict(int)
        for change in self._changes:
            device = change.storage.device
            sums[device] += change.delta
            peaks[device] = max(peaks.get(device, 0), sums[device])
        busy = [device for device in peaks if device.type != "cpu" and peaks[device]] or list(peaks)
        return max(busy, key=lambda device: peaks[device], default=None)

    def points(self, device: torch.device) -> tuple[list[MemoryPoint], MemoryPoint | None, list[MemoryOwner]]:
        """A timeline of ``device``'s storages, the moment of their highest sum, and who held it."""
        changes = [change for change in self._changes if change.storage.device == device]
        sums: dict[MemoryCategory, int] = defaultdict(int)
        stride = max(1, -(-len(changes) // _MAX_POINTS))
        points: list[MemoryPoint] = []
        total, highest, at = 0, -1, 0
        for index, change in enumerate(changes):
            total += change.delta
            sums[change.storage.purpose] += change.delta
            # of each stretch of changes its highest moment is kept
            if index % stride == 0:
                points.append(_point(index, change.phase, total, sums))
            elif total > points[-1].total_bytes:
                points[-1] = _point(index, change.phase, total, sums)
            if total > highest:
                highest, at = total, index
        peak = next((point for point in points if point.event == at), None)
        return points, peak, _owners(changes[: at + 1])

    def _see(self, storage: torch.UntypedStorage, born: Spot | None, line: Line | None) -> Storage:
        key, size = id(storage), storage.nbytes()
        reference, known = self._live.get(key, (None, None))
        if known is not None and reference is not None and reference() is storage:
            if size != known.size:
                self._change(known, size - known.size)
                known.size = size
            return known
        made = Storage(device=storage.device, size=size, born=born, line=line)
        self._live[key] = (weakref.ref(storage, lambda dead: self._bury(key, dead)), made)
        self._change(made, size)
        return made

    def _bury(self, key: int, dead: weakref.ref[Any]) -> None:
        reference, known = self._live.get(key, (None, None))
        if known is not None and reference is dead:
            del self._live[key]
            self._change(known, -known.size)

    def _change(self, storage: Storage, delta: int) -> None:
        if delta:
            self._changes.append(_Change(storage, delta, self.phase))


def _point(event: int, phase: Phase, total: int, sums: dict[MemoryCategory, int]) -> MemoryPoint:
    parts = tuple(CategoryBytes(category=one, bytes=sums[one]) for one in MemoryCategory if sums.get(one))
    return MemoryPoint(event=event, phase=phase, total_bytes=total, categories=parts)


def _owners(changes: Iterable[_Change]) -> list[MemoryOwner]:
    """Who holds what is left of ``changes``: the largest by place, then the rest of each category."""
    held: dict[Storage, int] = defaultdict(int)
    for change in changes:
        held[change.storage] += change.delta
    groups: dict[tuple[MemoryCategory, Site], list[int]] = defaultdict(list)
    for storage, size in held.items():
        if size:
            groups[storage.purpose, storage.site].append(size)
    owners = sorted(
        (_owner(category, site, sizes) for (category, site), sizes in groups.items()),
        key=lambda owner: owner.bytes,
        reverse=True,
    )
    rest: dict[MemoryCategory, list[MemoryOwner]] = defaultdict(list)
    for owner in owners[_MAX_OWNERS:]:
        rest[owner.category].append(owner)
    return owners[:_MAX_OWNERS] + [
        MemoryOwner(
            category=category,
            site=Site(phase=Phase.OTHER),
            bytes=sum(owner.bytes for owner in others),
            num_storages=sum(owner.num_storages for owner in others),
        )
        for category, others in rest.items()
    ]


def _owner(category: MemoryCategory, site: Site, sizes: list[int]) -> MemoryOwner:
    return MemoryOwner(category=category, site=site, bytes=sum(sizes), num_storages=len(sizes))
