"""What changed from one recording to another: runs, findings, figures."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes, format_ms
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.files import to_plain
from ampwise.records.finding import Finding
from ampwise.records.recording import Recording
from ampwise.records.run import Role, RunRecord, timed_steps
from ampwise.report.cells import NOTHING, Tone, figure, loss, scale
from ampwise.report.diagnosis import finding_document, verdict
from ampwise.report.places import site_words
from ampwise.report.words import ending

_SAME: Final = 0.03
"""A ratio this near 1 is called the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two recordings."""

    name: str
    """What its file is called."""
    recording: Recording
    diagnosis: Diagnosis | None
    """None where the recording is a comparison's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both."""

    name: str
    before: str
    after: str
    change: str
    tone: Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A run of the first recording and the one of the second that answers it."""

    name: str
    before: RunRecord
    after: RunRecord

    @property
    def rows(self) -> tuple[Row, ...]:
        """Their figures."""
        return tuple(_rows(self.before, self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Both recordings and what differs."""

    before: Side
    after: Side
    pairs: tuple[Pair, ...]
    gone: tuple[Finding, ...]
    """Findings of the first that the second has not."""
    new: tuple[Finding, ...]
    kept: tuple[Finding, ...]
    """Findings of the second that the first had too."""


def side_by_side(before: Side, after: Side) -> SideBySide:
    """What changed from ``before`` to ``after``.

    Runs are paired by what they were made for and, in comparisons, by their variant. Two findings are the same where
    rule, module and operator are.
    """
    first, second = _findings(before), _findings(after)
    return SideBySide(
        before=before,
        after=after,
        pairs=tuple(_pairs(before.recording, after.recording)),
        gone=tuple(one for key, one in first.items() if key not in second),
        new=tuple(one for key, one in second.items() if key not in first),
        kept=tuple(one for key, one in second.items() if key in first),
    )


def outcome(both: SideBySide) -> str:
    """What changed, in one sentence."""
    parts = [
        f"{len(ones)} {word}"
        for word, ones in (("gone", both.gone), ("new", both.new), ("still there", both.kept))
        if ones
    ]
    found = f"findings: {', '.join(parts)}" if parts else ""
    rows = both.pairs[0].rows if both.pairs else ()
    figures = [f"{row.name} {row.change}" for row in rows if row.change and row.tone in {Tone.GOOD, Tone.BAD}]
    said = "; ".join(part for part in (found, *figures) if part)
    names = f"{inert_line(both.after.name)} against {inert_line(both.before.name)}"
    return f"{names}: {said or 'nothing worth a word changed'}."


def overlaid(both: SideBySide) -> Recording:
    """The paired runs of both in one recording, each called by its file, for curves laid over each other."""
    names = [both.before.name, both.after.name]
    if names[0] == names[1]:
        names = [f"{names[0]} (1)", f"{names[1]} (2)"]
    several = len(both.pairs) > 1
    runs = [
        replace(run, variant=f"{name} {pair.name}" if several else name, repeat=0)
        for pair in both.pairs
        for name, run in zip(names, (pair.before, pair.after), strict=True)
    ]
    return replace(both.after.recording, runs=tuple(runs), comparison=None)


def side_by_side_json(both: SideBySide) -> dict[str, Any]:
    """The same for a machine."""
    return to_plain(
        {
            "before": _side(both.before),
            "after": _side(both.after),
            "outcome": outcome(both),
            "gone": [finding_document(one) for one in both.gone],
            "new": [finding_document(one) for one in both.new],
            "kept": [finding_document(one) for one in both.kept],
            "runs": [
                {"name": pair.name, "before": _numbers(pair.before), "after": _numbers(pair.after)}
                for pair in both.pairs
            ],
        }
    )


def finding_line(finding: Finding) -> str:
    """A finding on one line: severity, rule, place, message."""
    place = site_words(finding.site)
    message = inert_line(finding.message, max_length=300)
    return f"{finding.severity.value} {finding.rule}{f' {place}' if place else ''}: {message}"


def verdict_of(side: Side) -> str:
    """A recording's own verdict."""
    run = next(iter(side.recording.runs), None)
    return NOTHING if side.diagnosis is None else verdict(side.diagnosis, run)


def _findings(side: Side) -> dict[tuple[str, str | None, str | None], Finding]:
    found: dict[tuple[str, str | None, str | None], Finding] = {}
    for one in side.diagnosis.findings if side.diagnosis else ():
        site = one.site
        found.setdefault((one.rule, site.module if site else None, site.op if site else None), one)
    return found


def _pairs(before: Recording, after: Recording) -> Iterable[Pair]:
    if before.comparison is not None and after.comparison is not None:
        for variant in dict.fromkeys(run.variant for run in before.runs):
            first, second = _of(before, variant), _of(after, variant)
            if first is not None and second is not None:
                yield Pair(name=variant, before=first, after=second)
        return
    first, second = _judged(before), _judged(after)
    if first is not None and second is not None:
        yield Pair(name="the training", before=first, after=second)


def _of(recording: Recording, variant: str) -> RunRecord | None:
    return next((run for run in recording.runs if run.variant == variant), None)


def _judged(recording: Recording) -> RunRecord | None:
    watched = (run for run in recording.runs if run.role is Role.WATCHED)
    return next(watched, next(iter(recording.runs), None))


def _rows(before: RunRecord, after: RunRecord) -> Iterable[Row]:
    yield _words("precision", before.precision, after.precision)
    yield _words("ended", ending(before.end), ending(after.end))
    yield _words("steps", str(len(before.steps)), str(len(after.steps)))
    yield _number("step time", (step_ms(before), step_ms(after)), format_ms, worse="slower", better="faster")
    yield _number("peak memory", (peak(before), peak(after)), format_bytes, worse="more", better="less")
    yield _words("last loss", figure(last_loss(before), loss), figure(last_loss(after), loss))
    yield _words("skipped steps", str(before.num_skipped), str(after.num_skipped))
    yield _words("loss scale", figure(before.final_scale, scale), figure(after.final_scale, scale))


def _words(name: str, before: str, after: str) -> Row:
    before, after = inert_line(before, max_length=60), inert_line(after, max_length=60)
    return Row(name=name, before=before, after=after, change="" if before == after else "changed", tone=Tone.PLAIN)


def _number(
    name: str, values: tuple[float | None, float | None], form: Callable[[float], str], *, worse: str, better: str
) -> Row:
    before, after = values
    change, tone = "", Tone.PLAIN
    if before and after:
        ratio = after / before
        if abs(ratio - 1) <= _SAME:
            change = "the same"
        else:
            tone = Tone.BAD if ratio > 1 else Tone.GOOD
            word = worse if ratio > 1 else better
            change = f"{abs(1 - ratio):.0%} {word}" if name == "peak memory" else f"{max(ratio, 1 / ratio):.2f}x {word}"
    return Row(name=name, before=figure(before, form), after=figure(after, form), change=change, tone=tone)


def step_ms(run: RunRecord) -> float | None:
    """Median time of the steps that no instrument slowed."""
    times = [step.time_ms for step in timed_steps(run) if step.time_ms is not None and math.isfinite(step.time_ms)]
    return median(times) if times else None


def peak(run: RunRecord) -> int | None:
    """The largest memory known of a run: of its timeline, else as it was counted or as the allocator says."""
    if run.memory is not None and run.memory.peak is not None:
        return run.memory.peak.total_bytes
    return run.peak_allocated_bytes if run.peak_tensor_bytes is None else run.peak_tensor_bytes


def last_loss(run: RunRecord) -> float | None:
    """The loss of the last step that had one."""
    return next((step.loss for step in reversed(run.steps) if step.loss is not None), None)


def _side(side: Side) -> dict[str, Any]:
    return {
        "file": side.name,
        "created": side.recording.created,
        "command": side.recording.command,
        "verdict": verdict_of(side),
    }


def _numbers(run: RunRecord) -> dict[str, Any]:
    return {
        "precision": run.precision,
        "end": run.end,
        "steps": len(run.steps),
        "step_ms_median": step_ms(run),
        "peak_bytes": peak(run),
        "final_loss": last_loss(run),
        "skipped": run.num_skipped,
        "final_scale": run.final_scale,
    }


def groups(both: SideBySide) -> tuple[tuple[str, Sequence[Finding], Tone], ...]:
    """The findings under their headings; empty groups left out."""
    every = (("New", both.new, Tone.BAD), ("Gone", both.gone, Tone.GOOD), ("Still there", both.kept, Tone.CAUTION))
    return tuple(group for group in every if group[1])
