"""What the ledger of an imaginary run came to: the peak, who holds it, and the step over time."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ampwise.estimate.ledger import Ledger, Storage
from ampwise.estimate.replay import replay
from ampwise.estimate.spot import Spot
from ampwise.estimate.whereabouts import Whereabouts
from ampwise.records.estimate import Estimate
from ampwise.records.memory import CategoryBytes, MemoryCategory, MemoryOwner, MemoryPoint
from ampwise.records.site import Phase, Site

_MAX_OWNERS: Final = 20
_NUM_POINTS: Final = 200


def picture(
    ledger: Ledger,
    whereabouts: Whereabouts,
    *,
    precision: str,
    capacity_bytes: int | None,
    context_bytes: int | None,
    assumptions: tuple[str, ...],
    is_lower_bound: bool = False,
) -> Estimate:
    """The estimate that a run's ledger holds.

    Args:
        ledger: Of all of the run.
        whereabouts: Knows what storages are for.
        precision: What the run computed in.
        capacity_bytes: What the GPU can hold beside its context.
        context_bytes: What the context takes.
        assumptions: What had to be assumed.
        is_lower_bound: The run could not go on.
    """
    alive = ledger.alive_at(ledger.peak_time)
    site = None if ledger.peak_spot is None else ledger.peak_spot.site
    return Estimate(
        precision=precision,
        allocated_bytes=ledger.allocator.peak_allocated_bytes,
        reserved_bytes=ledger.allocator.peak_reserved_bytes,
        categories=_in_order(_sizes(alive, whereabouts)),
        peak_phase=None if site is None else site.phase.value,
        peak_line=None if site is None else site.where or None,
        owners=tuple(_owners(alive, whereabouts)),
        timeline=tuple(_timeline(ledger, whereabouts)),
        least_bytes=max(ledger.peak_live_bytes, ledger.live_bytes),
        convolution_bytes=_of_convolutions(ledger),
        capacity_bytes=capacity_bytes,
        context_bytes=context_bytes,
        is_lower_bound=is_lower_bound,
        assumptions=assumptions,
    )


def _of_convolutions(ledger: Ledger) -> int:
    """What is reserved more if every convolution takes its most."""
    if not ledger.convolutions:
        return 0
    return replay(ledger, with_convolutions=True).peak_reserved_bytes - ledger.allocator.peak_reserved_bytes


def _sizes(alive: Iterable[Storage], whereabouts: Whereabouts) -> Counter[MemoryCategory]:
    sizes: Counter[MemoryCategory] = Counter()
    for storage in alive:
        sizes[whereabouts.category_of(storage)] += storage.block_bytes
    return sizes


def _in_order(sizes: Counter[MemoryCategory]) -> tuple[CategoryBytes, ...]:
    return tuple(CategoryBytes(category=one, bytes=sizes[one]) for one in MemoryCategory if sizes[one])


def _owners(alive: Iterable[Storage], whereabouts: Whereabouts) -> list[MemoryOwner]:
    """Storages of one category that were born at one place, or belong to one module, put together."""
    by_spot: dict[tuple[MemoryCategory, Spot, str | None], list[int]] = {}
    for storage in alive:
        key = whereabouts.category_of(storage), storage.spot, whereabouts.names.get(storage.born)
        by_spot.setdefault(key, []).append(storage.block_bytes)
    by_site: dict[tuple[MemoryCategory, Site], list[int]] = {}
    for (category, spot, module), sizes in by_spot.items():
        by_site.setdefault((category, _place(category, spot, module)), []).extend(sizes)
    made = [
        MemoryOwner(category=category, site=site, bytes=sum(sizes), num_storages=len(sizes))
        for (category, site), sizes in by_site.items()
    ]
    return sorted(made, key=lambda owner: -owner.bytes)[:_MAX_OWNERS]


def _place(category: MemoryCategory, spot: Spot, module: str | None) -> Site:
    if module is not None or category in {MemoryCategory.GRADIENT, MemoryCategory.OPTIMIZER_STATE}:
        return Site(phase=spot.phase, module=module)
    return spot.site


def _timeline(ledger: Ledger, whereabouts: Whereabouts) -> list[MemoryPoint]:
    """The last whole step, in at most so many points; the peak is one of them where it lies there."""
    marks = [moment.time for moment in ledger.moments]
    if len(marks) < 2:
        return []
    start, end = marks[-2], marks[-1]
    stride = max(1, (end - start) // _NUM_POINTS)
    wanted = {*range(start, end, stride), end}
    if start <= ledger.peak_time <= end:
        wanted.add(ledger.peak_time)
    alive = Counter(_sizes(ledger.alive_at(start), whereabouts))
    births = {one.born: one for one in ledger.storages if start <= one.born < end}
    deaths = {one.died: one for one in ledger.storages if one.died is not None and start <= one.died < end}
    points: list[MemoryPoint] = []
    phase = Phase.OTHER
    for time in range(start, end + 1):
        if time in wanted:
            points.append(_point(time - start, phase, alive))
        born, died = births.get(time), deaths.get(time)
        if born is not None:
            alive[whereabouts.category_of(born)] += born.block_bytes
            phase = born.spot.phase
        if died is not None:
            alive[whereabouts.category_of(died)] -= died.block_bytes
    return points


def _point(event: int, phase: Phase, sizes: Counter[MemoryCategory]) -> MemoryPoint:
    return MemoryPoint(event=event, phase=phase, total_bytes=sizes.total(), categories=_in_order(sizes))
