"""Puts what instruments saw on each rank into one: sums, extremes, or the rank that has most of it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from ampwise.records.against_fp32 import AgainstFp32Record, ModuleError
from ampwise.records.casts import CastRecord
from ampwise.records.layout import LayoutRecord
from ampwise.records.memory import MemoryRecord
from ampwise.records.process import ProcessRecord
from ampwise.records.run import RunRecord
from ampwise.records.syncs import SyncPlace, SyncRecord
from ampwise.records.usage import UsageRecord

T = TypeVar("T")
_ALIKE: Final = 1.1
"""Ranks whose figures differ by less are taken for alike."""
_NO_WAIT_MS: Final = 1.0
"""A DataLoader that holds up a step by less holds up nobody."""
Ranked = Sequence[tuple[int, T]]
"""What each rank has, the lowest rank first."""


def sections_of(ordered: Ranked[RunRecord]) -> tuple[dict[str, Any], list[str]]:
    """What the instruments saw, by its field of a run's record, and which of it is of another rank than the lowest.

    Modules, waits and misuses are the union, each as the rank with most of it had it; the worst error of any rank
    stands for each module; products and kernels are the rank's that computed longest, casts the rank's that cast most,
    the memory's timeline the fullest rank's, the process's accounts the rank's that waits longest for its data.

    Args:
        ordered: the runs with their ranks, the lowest first.
    """
    kernels = _largest([(rank, run.kernels) for rank, run in ordered if run.kernels], lambda one: one.work_ms)
    casts = _largest([(rank, run.casts) for rank, run in ordered if run.casts], _cast_bytes)
    memory = _largest([(rank, run.memory) for rank, run in ordered if run.memory], _peak_bytes)
    process = _largest([(rank, run.process) for rank, run in ordered if run.process], _data_ms)
    first = ordered[0][0]
    notes = [
        f"{what} of rank {one[0]}"
        for what, one in (
            ("products and kernels are those", kernels),
            ("casts are those", casts),
            ("the memory's timeline is that", memory),
            ("the process's accounts and the parts of a step are those", process),
        )
        if one is not None and one[0] != first
    ]
    sections = {
        "kernels": kernels and kernels[1],
        "casts": casts and casts[1],
        "memory": memory and memory[1],
        "process": process and process[1],
        "layout": _layout([run.layout for _, run in ordered if run.layout]),
        "syncs": _syncs([run.syncs for _, run in ordered if run.syncs]),
        "against_fp32": _against_fp32([run.against_fp32 for _, run in ordered if run.against_fp32]),
        "usage": _usage([run.usage for _, run in ordered if run.usage]),
    }
    return sections, notes


def _largest(held: Ranked[T], size: Callable[[T], float]) -> tuple[int, T] | None:
    """The largest and its rank; the first one's where it is as large but for noise."""
    top = max(held, key=lambda one: size(one[1]), default=None)
    return held[0] if top is not None and size(top[1]) <= size(held[0][1]) * _ALIKE else top


def _cast_bytes(record: CastRecord) -> float:
    return sum(cast.bytes for cast in record.casts)


def _peak_bytes(record: MemoryRecord) -> float:
    return record.peak.total_bytes if record.peak else 0


def _data_ms(record: ProcessRecord) -> float:
    return max(record.parts.data_ms if record.parts else 0.0, _NO_WAIT_MS)


def _layout(records: Sequence[LayoutRecord]) -> LayoutRecord | None:
    """The modules of all: stages of a pipeline differ."""
    every = dict.fromkeys(entry for record in records for entry in record.modules)
    return LayoutRecord(modules=tuple(every)) if records else None


def grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """The items of each key, in the order in which the keys come first."""
    groups: dict[object, list[T]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())


def _syncs(records: Sequence[SyncRecord]) -> SyncRecord | None:
    if not records:
        return None
    every = (place for record in records for place in record.places)
    places = (max(ones, key=_how_much) for ones in grouped(every, lambda one: (one.site, one.kind, one.call)))
    return replace(
        max(records, key=lambda one: len(one.steps)),
        places=tuple(sorted(places, key=lambda one: -one.count)),
        cost_ms=max(record.cost_ms for record in records),
    )


def _how_much(place: SyncPlace) -> tuple[int, float]:
    return place.count, place.stall_ms or 0.0


def _against_fp32(records: Sequence[AgainstFp32Record]) -> AgainstFp32Record | None:
    if not records:
        return None
    alike = [record for record in records if record.format == records[0].format]
    every = (one for record in alike for one in record.modules)
    modules = (max(ones, key=_badness) for ones in grouped(every, lambda one: (one.module, one.call)))
    decided = grouped((one for record in alike for one in record.flips), lambda one: replace(one, **_UNCOUNTED))
    flips = (
        replace(
            ones[0],
            num_decisions=sum(one.num_decisions for one in ones),
            num_flipped=sum(one.num_flipped for one in ones),
        )
        for ones in decided
    )
    return replace(records[0], modules=tuple(modules), flips=tuple(flips))


_UNCOUNTED: Final = {"num_decisions": 0, "num_flipped": 0}


def _badness(one: ModuleError) -> float:
    return math.inf if math.isnan(one.relative) else one.relative


def _usage(records: Sequence[UsageRecord]) -> UsageRecord | None:
    if not records:
        return None
    groups = grouped(
        (place for record in records for place in record.misuses), lambda one: (one.kind, one.site, one.what)
    )
    misuses = (max(ones, key=lambda one: one.count) for ones in groups)
    return replace(records[0], misuses=tuple(misuses))
