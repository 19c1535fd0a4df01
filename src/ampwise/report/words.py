"""What a comparison came to, in sentences."""

import math
from dataclasses import dataclass
from typing import assert_never

from ampwise._base.text import inert_line
from ampwise._base.units import format_ms
from ampwise.records.comparison import Comparison, VariantSummary, Verdict
from ampwise.records.outputs import OutputDistance
from ampwise.records.recording import Recording
from ampwise.records.run import RunEnd, RunRecord
from ampwise.report.cells import Tone, hours, tone_of

_SAME = 0.03
"""A ratio this near 1 is called the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence on one variant and how to take it."""

    text: str
    tone: Tone


def headline(recording: Recording) -> Sentence:
    """The outcome in one sentence: of the best variant, or why there is none."""
    comparison = recording.comparison
    if comparison is None or not comparison.variants:
        count = len(recording.runs)
        runs = "no runs" if count == 0 else "one run" if count == 1 else f"{count} runs"
        return Sentence(text=f"This recording holds {runs} and no comparison.", tone=Tone.PLAIN)
    first, *others = comparison.variants
    finished = [summary for summary in others if summary.error is None]
    if first.error is not None and not finished:
        return Sentence(text="No variant finished.", tone=Tone.BAD)
    own = next((run.left_alone for run in recording.runs if run.left_alone is not None), None)
    if own is not None:
        text = f"All ran alike: the script's own mixed precision was left to it ({inert_line(own)})."
        return Sentence(text=text, tone=Tone.CAUTION)
    if first.error is not None:
        return _without_first(first, min(finished, key=lambda summary: summary.step_ms_median or math.inf))
    if not finished:
        return _alone(first, num_failed=len(others))
    return sentence(max(finished, key=_merit), first)


def sentences(comparison: Comparison) -> tuple[Sentence, ...]:
    """One sentence for every variant after the first."""
    first, *others = comparison.variants or (None,)
    return () if first is None else tuple(sentence(summary, first) for summary in others)


def sentence(summary: VariantSummary, first: VariantSummary) -> Sentence:
    """What a variant gained over the first, and at what price to its loss."""
    name = _name(summary)
    if summary.error is not None:
        return Sentence(text=f"{name} did not finish: {inert_line(summary.error, max_length=300)}", tone=Tone.BAD)
    gains = [gain for gain in (_speed(summary, first), _memory(summary)) if gain]
    text = f"{name} {' and '.join(gains)}" if gains else f"{name} was not timed"
    return Sentence(text=f"{text}{_loss(summary)}.", tone=tone_of(summary))


def projection(comparison: Comparison) -> str | None:
    """How long the projected number of steps would take in each variant."""
    known = [s for s in comparison.variants if s.projected_hours is not None and math.isfinite(s.projected_hours)]
    if comparison.project_steps is None or not known:
        return None
    times = ", ".join(f"{hours(s.projected_hours or 0.0)} in {_name(s)}" for s in known)
    what = "forward passes" if comparison.evaluates else "steps"
    return f"{comparison.project_steps:,} {what} would take {times}."


def ending(end: RunEnd) -> str:
    """How a run ended, in words."""
    match end:
        case RunEnd.FINISHED:
            return "came to its own end"
        case RunEnd.STOPPED:
            return "stopped after the steps asked for"
        case RunEnd.FAILED:
            return "failed"
        case RunEnd.OUT_OF_MEMORY:
            return "ran out of memory"
        case RunEnd.KILLED:
            return "was killed"
        case RunEnd.NO_STEPS:
            return "made no training step"
        case _:
            assert_never(end)


def ratios_mean(comparison: Comparison) -> str:
    """What the ratio columns say."""
    first = _name(comparison.variants[0]) if comparison.variants else "the first variant"
    judged = (
        "The output error is the size of the difference from fp32's outputs over the size of those, in the same "
        "forward passes; argmax moved is the share of rows whose largest entry is another."
        if comparison.evaluates
        else "The verdict holds a loss against fp32's own noise, two fp32 runs with different seeds."
    )
    return (
        f"Speed is {first}'s median {'forward' if comparison.evaluates else 'step'} time over the variant's, smaller "
        f"its peak memory over the variant's: 2.00x is twice as fast, or half the memory. {judged}"
    )


def how_timed(comparison: Comparison | None = None) -> str:
    """What a step time is, and which steps have one."""
    if comparison is not None and comparison.evaluates:
        return (
            "Forward times are of the first model's call alone, without the loading of data. A tenth of each run's "
            "passes, at least two, is warm-up; they and the pass whose memory is counted are not timed."
        )
    return (
        "Step times run from the end of one optimizer step to the end of the next, data loading included. A tenth of "
        "each run's steps, at least two, is warm-up; they and the step whose memory is counted are not timed."
    )


def notes(recording: Recording) -> dict[str, list[str]]:
    """What the runs of each variant noted, each note once."""
    found: dict[str, dict[str, None]] = {}
    for run in recording.runs:
        found.setdefault(run.variant, {}).update(dict.fromkeys((*_shortness(run, recording.comparison), *run.notes)))
    return {variant: list(texts) for variant, texts in found.items() if texts}


def _shortness(run: RunRecord, comparison: Comparison | None) -> tuple[str, ...]:
    if comparison is None or run.end is not RunEnd.FINISHED or len(run.steps) >= comparison.num_steps:
        return ()
    what = "forward passes" if comparison.evaluates else "steps"
    return (f"the script came to its own end after {len(run.steps)} of {comparison.num_steps} {what}",)


def equal_for_all(recording: Recording) -> tuple[str, ...]:
    """What every variant had in common, so that the ratios are the precision's alone; one fact an item."""
    environment, comparison = recording.environment, recording.comparison
    device = f"{inert_line(environment.device_name)} ({inert_line(environment.device)})"
    facts = [
        f"the allocator: {inert_line(environment.allocator)}; its gain is in every variant and in no ratio",
        f"the machine: {device}, {environment.num_threads} threads",
        "the seeds: runs of the same number have the same ones in every variant",
    ]
    if comparison is not None:
        what = "forward passes" if comparison.evaluates else "steps"
        repeats = "one run" if comparison.num_repeats == 1 else f"{comparison.num_repeats} runs"
        facts.append(
            f"the work: {repeats} of {comparison.num_steps} {what} a variant, each in a process of its own, "
            "taking turns"
        )
    return tuple(facts)


def _name(summary: VariantSummary) -> str:
    variant, precision = inert_line(summary.variant, max_length=60), summary.precision
    return variant if precision in {None, variant.partition("+")[0]} else f"{variant} ({inert_line(precision or '')})"


def _without_first(first: VariantSummary, best: VariantSummary) -> Sentence:
    text = f"{_name(first)} did not finish, so there is no ratio; {_name(best)} {_takes(best)}{_loss(best)}."
    return Sentence(text=text, tone=Tone.BAD)


def _takes(summary: VariantSummary) -> str:
    time = summary.step_ms_median
    unit = "a step" if summary.outputs is None else "a forward pass"
    return "was not timed" if time is None or not math.isfinite(time) else f"takes {format_ms(time)} {unit}"


def _outputs(seen: OutputDistance) -> str:
    if not math.isfinite(seen.relative_error):
        return ", but its outputs are infinite or NaN where fp32's are not"
    if seen.relative_error == 0:
        return "; its outputs are fp32's to the last bit"
    flips = f", and {seen.flips:.1%} of the decisions" if seen.num_flips else ""
    return f"; its outputs differ from fp32's by {seen.relative_error:.1e}{flips}"


def _alone(first: VariantSummary, *, num_failed: int) -> Sentence:
    if num_failed:
        return Sentence(text=f"Only {_name(first)} finished; it {_takes(first)}.", tone=Tone.BAD)
    return Sentence(text=f"{_name(first)} {_takes(first)}.", tone=tone_of(first))


def _merit(summary: VariantSummary) -> tuple[bool, float]:
    """Fast is worth nothing where the loss is gone."""
    ratio = summary.ratio_time
    return tone_of(summary) in {Tone.GOOD, Tone.PLAIN}, ratio if ratio is not None and math.isfinite(ratio) else 0.0


def _speed(summary: VariantSummary, first: VariantSummary) -> str | None:
    ratio = summary.ratio_time
    if ratio is None or not math.isfinite(ratio) or ratio <= 0:
        return None
    verb = "trains" if summary.outputs is None else "evaluates"
    if abs(ratio - 1) <= _SAME:
        return f"{verb} as fast as {_name(first)}"
    if ratio > 1:
        return f"{verb} {ratio:.2f}x as fast as {_name(first)}"
    return f"takes {1 / ratio:.2f}x as long as {_name(first)}"


def _memory(summary: VariantSummary) -> str | None:
    ratio = summary.ratio_memory
    if ratio is None or not math.isfinite(ratio) or ratio <= 0:
        return None
    if abs(ratio - 1) <= _SAME:
        return "needs as much memory"
    if ratio > 1:
        return f"needs {1 - 1 / ratio:.0%} less memory"
    return f"needs {1 / ratio - 1:.0%} more memory"


def _loss(summary: VariantSummary) -> str:
    if summary.outputs is not None:
        return _outputs(summary.outputs)
    match summary.verdict:
        case None:
            return ""
        case Verdict.IDENTICAL:
            return "; its loss is fp32's to the last bit"
        case Verdict.WITHIN_NOISE:
            return "; its loss is within fp32's own noise"
        case Verdict.DRIFTING:
            return ", but its loss drifts away from fp32's"
        case Verdict.DIVERGED:
            return ", but its loss diverged"
        case _:
            assert_never(summary.verdict)
