"""Puts the records of processes that trained together into one, and says which of them was at fault."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, TypeVar

from ampwise._base.units import format_ms
from ampwise.records.lost_peer import has_lost_peer
from ampwise.records.nonfinite import BadInput, FoundBy, NonFiniteRecord, Origin
from ampwise.records.numerics import NumericsRecord, TensorStatistics
from ampwise.records.rank_sections import grouped, sections_of
from ampwise.records.run import UNTOLD, RankRecord, RunEnd, RunRecord, StepRecord, timed_steps
from ampwise.records.site import Phase

T = TypeVar("T")
Number = TypeVar("Number", int, float)
_COPIES: Final = ("c10d", "copy_", "div", "foreach", "_fused", "add_", "mul")
"""Operators by which a reduction hands on what another rank made."""
_LATE: Final = 0.1
"""The part of a step by which a rank that holds up the others comes late, at least."""
_LATE_MS: Final = 1.0
"""And in all: shorter ones are the machine's noise."""
_MOSTLY: Final = 0.8
"""In which part of the steps it does so: a busy machine holds up one rank now, another then."""
_NUM_TIMED: Final = 4


def merged(runs: Sequence[tuple[int, RunRecord]]) -> RunRecord:
    """One record of a run of several processes.

    A step's loss is the mean over ranks, as their gradients' is; its time that of the slowest; it is skipped where any
    rank says so. Memory is the fullest rank's, histograms are summed, extremes are the largest, and what is infinite or
    NaN is told of the rank that made it, not of those that were handed it; ``sections_of`` says it of the other
    instruments. All else is the lowest rank's that made a step.

    Args:
        runs: with their ranks; at least one.
    """
    ordered = sorted(runs, key=lambda one: one[0])
    records = [run for _, run in ordered]
    base = next((run for run in records if run.steps), records[0])
    if len(ordered) == 1:
        return base
    end = _worst(records)
    sections, others = sections_of(ordered)
    ranks = tuple(_of_rank(rank, run) for rank, run in ordered)
    return replace(
        base,
        end=end.end,
        failure=end.failure,
        crash=end.crash,
        steps=_steps(records),
        peak_tensor_bytes=_largest(run.peak_tensor_bytes for run in records),
        peak_allocated_bytes=_largest(run.peak_allocated_bytes for run in records),
        numerics=_numerics([(rank, run.numerics) for rank, run in ordered if run.numerics is not None]),
        nonfinite=_nonfinite([(rank, run.nonfinite) for rank, run in ordered if run.nonfinite is not None]),
        notes=(*base.notes, *_notes(ordered), *_told_of(end, ordered, base), *_late(ordered), *others),
        ranks=ranks,
        **sections,
    )


def _told_of(end: RunRecord, ordered: Sequence[tuple[int, RunRecord]], base: RunRecord) -> list[str]:
    """What was noted of the run that failed, where it is another one's notes that are told."""
    rank = next(rank for rank, run in ordered if run is end)
    return [f"rank {rank}: {note}" for note in end.notes if end.failure is not None and note not in base.notes]


def _of_rank(rank: int, run: RunRecord) -> RankRecord:
    times = [step.time_ms for step in timed_steps(run) if step.time_ms is not None]
    return RankRecord(
        rank=rank,
        end=run.end,
        failure=run.failure,
        num_steps=len(run.steps),
        num_skipped=run.num_skipped,
        step_ms_median=median(times) if times else None,
        ahead_ms_median=_ahead(run),
        peak_bytes=_largest((run.peak_tensor_bytes, run.peak_allocated_bytes)),
        first_bad_loss=run.first_bad_loss,
    )


def _ahead(run: RunRecord) -> float | None:
    times = [step.ahead_ms for step in timed_steps(run) if step.ahead_ms is not None]
    return median(times) if times else None


def _late(ordered: Sequence[tuple[int, RunRecord]]) -> list[str]:
    """Which rank the others wait for: they have equal steps then, and differ in what comes before the backward pass."""
    timed = {
        rank: {step.index: step for step in timed_steps(run) if step.ahead_ms is not None} for rank, run in ordered
    }
    common = sorted(set.intersection(*map(set, timed.values())))
    if len(common) < _NUM_TIMED:
        return []
    for rank in timed:
        others = [one for other, one in timed.items() if other != rank]
        leads = [(timed[rank][index].ahead_ms or 0.0) - median(_aheads(others, index)) for index in common]
        least = max(_LATE * median(timed[rank][index].time_ms or 0.0 for index in common), _LATE_MS)
        if sum(lead >= least for lead in leads) >= _MOSTLY * len(leads):
            words = (
                f"rank {rank} comes to its backward pass {format_ms(median(leads))} later than the others, who wait "
            )
            return [words + "for it: look at its data and its forward pass"]
    return []


def _aheads(ranks: Sequence[dict[int, StepRecord]], index: int) -> list[float]:
    return [one[index].ahead_ms or 0.0 for one in ranks]


def _worst(records: Sequence[RunRecord]) -> RunRecord:
    """The record that says why the run ended: a rank's own fault before that of those that waited for it.

    A rank that lost others when these had made the steps asked for, or that had no batch, is no reason. One that a
    signal ended is, where all others only lost another: nobody ends a rank but one that the others wait for in vain.
    """
    is_stopped = any(run.end is RunEnd.STOPPED for run in records)

    def badness(run: RunRecord) -> int:
        if run.has_finished or (run.end is RunEnd.NO_STEPS and any(one.steps for one in records)):
            return 4 if run.end is RunEnd.STOPPED or not is_stopped else 5
        if _is_left_behind(run):
            return 6 if is_stopped else 1 if run.end is RunEnd.KILLED else 2
        return 3 if run.failure is None else 0

    return min(records, key=lambda run: (badness(run), not run.steps))


def _is_left_behind(run: RunRecord) -> bool:
    """Whether it ended because another rank had."""
    if run.failure is None:
        return False
    return has_lost_peer(run.failure.message) or run.end is RunEnd.KILLED


def _steps(records: Sequence[RunRecord]) -> tuple[StepRecord, ...]:
    """As many steps as the rank with the fewest made, but for one that made none."""
    counted = [run.steps for run in records if run.steps]
    return tuple(map(_step, zip(*counted, strict=False)))


def _step(ones: Sequence[StepRecord]) -> StepRecord:
    losses = [one.loss for one in ones if one.loss is not None]
    samples = [one.num_samples for one in ones if one.num_samples is not None]
    return replace(
        ones[0],
        loss=math.fsum(losses) / len(losses) if losses and all(map(math.isfinite, losses)) else _first_bad(losses),
        time_ms=_largest(one.time_ms for one in ones) if all(one.time_ms is not None for one in ones) else None,
        num_samples=sum(samples) if samples else None,
        skipped=any(one.skipped for one in ones),
    )


def _first_bad(losses: Sequence[float]) -> float | None:
    return next((one for one in losses if not math.isfinite(one)), None)


def _largest(values: Iterable[Number | None]) -> Number | None:
    return max((one for one in values if one is not None), default=None)


def _notes(ordered: Sequence[tuple[int, RunRecord]]) -> list[str]:
    """What sets one rank apart from the rest."""
    notes: list[str] = []
    counts = {rank: len(run.steps) for rank, run in ordered if run.reason != UNTOLD}
    if len(set(counts.values())) > 1:
        notes.append(f"the ranks made different numbers of steps: {_by_rank(counts, str)}")
    skips = {rank: tuple(step.index for step in run.steps if step.skipped) for rank, run in ordered if rank in counts}
    shortest = min(counts.values(), default=0)
    if len({tuple(one for one in each if one < shortest) for each in skips.values()}) > 1:
        notes.append(
            "the ranks skipped different steps, so their parameters differ from then on: "
            f"{_by_rank(skips, lambda each: ' '.join(map(str, each[:5])) or 'none')}"
        )
    scales = {rank: tuple(one.scale for one in run.steps[:shortest]) for rank, run in ordered if run.steps}
    if len(set(scales.values())) > 1:
        place = next(index for index, several in enumerate(zip(*scales.values(), strict=True)) if len(set(several)) > 1)
        notes.append(
            f"the ranks scaled their losses differently, first at step {place}: "
            f"{_by_rank(scales, lambda each: _scale(each[place]))}"
        )
    if len({run.precision for _, run in ordered}) > 1:
        notes.append(f"the ranks computed in different formats: {_by_rank(dict(ordered), lambda run: run.precision)}")
    return [*notes, *_ends(ordered)]


def _ends(ordered: Sequence[tuple[int, RunRecord]]) -> list[str]:
    """Who ended first, where the ranks did not end alike."""
    failed = [(rank, run) for rank, run in ordered if run.failure is not None]
    if not failed or all(run.failure == failed[0][1].failure for _, run in ordered):
        return []
    if any(not _is_left_behind(run) for _, run in failed):
        worst = _worst([run for _, run in ordered])
        first = next(rank for rank, run in ordered if run is worst)
        return [f"rank {first} failed first; what it says is told above"]
    lost = ", ".join(str(rank) for rank, _ in failed)
    for rank, run in ordered:
        if run.end is RunEnd.STOPPED:
            return [f"rank {lost} was still at work when rank {rank} had made the steps asked for, and ended with it"]
    for rank, run in ordered:
        if run.failure is None:
            end = f"rank {rank} came to its own end after {len(run.steps)} steps; rank {lost} went on, and lost it"
            return [f"{end}: give all ranks as many steps, or use torch's Join"]
    for rank, run in failed:
        if run.end is RunEnd.KILLED and run.failure is not None:
            return [f"rank {rank} was ended by {run.failure.kind}, and the others lost it"]
    return [f"rank {failed[0][0]} is told above; which rank ended first is not known"]


def _scale(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _by_rank(values: dict[int, T], words: Callable[[T], str]) -> str:
    return ", ".join(f"rank {rank}: {words(value)}" for rank, value in values.items())


def _numerics(records: Sequence[tuple[int, NumericsRecord]]) -> NumericsRecord | None:
    if not records:
        return None
    base = records[0][1]
    every = ((rank, one) for rank, record in records for one in record.tensors)
    found = grouped(every, lambda ranked: (ranked[1].module, ranked[1].kind, ranked[1].parameter))
    return replace(
        base,
        tensors=tuple(map(_tensor, found)),
        alarms=tuple(sorted({step for _, record in records for step in record.alarms})),
        cost_ms=max(record.cost_ms for _, record in records),
    )


def _tensor(ones: Sequence[tuple[int, TensorStatistics]]) -> TensorStatistics:
    """Of all ranks: more elements, the same tensor."""
    first = ones[0][1]
    histogram = first.histogram
    for _, one in ones[1:]:
        histogram = histogram.merged(one.histogram)
    length = max(len(one.amax) for _, one in ones)
    columns = [[one.amax[place] for _, one in ones if place < len(one.amax)] for place in range(length)]
    top = max(ones, key=lambda one: (one[1].num_non_finite_steps, one[1].max_amax or 0.0))
    return replace(first, histogram=histogram, amax=tuple(map(_extreme, columns)), rank=top[0])


def _extreme(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    nan = next((one for one in known if math.isnan(one)), None)
    return nan if nan is not None else max(known, default=None)


def _nonfinite(records: Sequence[tuple[int, NonFiniteRecord]]) -> NonFiniteRecord | None:
    if not records:
        return None
    base = records[0][1]
    origins = [replace(one, rank=rank) for rank, record in records for one in record.origins]
    inputs = [replace(one, rank=rank) for rank, record in records for one in record.inputs]
    order = {rank: place for place, (rank, _) in enumerate(records)}
    kept = [one for one in origins if not _is_handed_on(one, origins, inputs, records)]
    return replace(
        base,
        origins=_unique(sorted(kept, key=lambda one: (one.step, one.found_by is FoundBy.GUARD, order[one.rank or 0]))),
        inputs=tuple(sorted(inputs, key=lambda one: one.step)),
        outputs=tuple(replace(one, rank=rank) for rank, record in records for one in record.outputs),
        loss_steps=_union(record.loss_steps for _, record in records),
        gradient_steps=_union(record.gradient_steps for _, record in records),
        weight_steps=_union(record.weight_steps for _, record in records),
        buffers=tuple(dict.fromkeys(name for _, record in records for name in record.buffers)),
        buffers_before=tuple(dict.fromkeys(name for _, record in records for name in record.buffers_before)),
    )


def _is_handed_on(
    one: Origin,
    origins: Sequence[Origin],
    inputs: Sequence[BadInput],
    records: Sequence[tuple[int, NonFiniteRecord]],
) -> bool:
    """Whether another rank had it before: in its loss, its inputs, or an operator that is none of a reduction's."""
    if one.site.phase is Phase.FORWARD:
        return False
    own = next(record for rank, record in records if rank == one.rank)
    if one.step in own.loss_steps:
        return False
    others = [(rank, record) for rank, record in records if rank != one.rank]
    if any(step <= one.step for _, record in others for step in record.loss_steps):
        return True
    if any(given.step <= one.step and given.rank != one.rank for given in inputs):
        return True
    made = [other for other in origins if other.rank != one.rank and other.step <= one.step and _is_made(other)]
    return bool(made) and not _is_made(one)


def _is_made(origin: Origin) -> bool:
    """Whether an operator is known that computes, and does not only hand on."""
    operator = (origin.site.op or "").removeprefix("aten.")
    return origin.found_by is not FoundBy.GUARD and bool(operator) and not operator.startswith(_COPIES)


def _unique(origins: Sequence[Origin]) -> tuple[Origin, ...]:
    """One a site: the first rank's."""
    return tuple({one.site: one for one in reversed(origins)}.values())[::-1]


def _union(steps: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({step for several in steps for step in several}))
