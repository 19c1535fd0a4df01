"""What each figure of a comparison reads like, in a terminal and on a page alike."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from ampwise._base.text import inert_line
from ampwise._base.units import MS_PER_HOUR, format_bytes, format_ms, format_ratio
from ampwise.records.comparison import Comparison, VariantSummary, Verdict

NOTHING = "–"  # noqa: RUF001  # an en dash is what stands for "no figure" in a table


class Tone(StrEnum):
    """How a reader should take it."""

    GOOD = "good"
    CAUTION = "caution"
    BAD = "bad"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant's figures as text; a dash where there is none."""

    variant: str
    precision: str
    step: str
    iqr: str
    speed: str
    rate: str
    projected: str
    loss: str
    verdict: str
    reason: str
    memory: str
    saving: str
    skipped: str
    scale: str
    difference: str
    flips: str
    error: str | None
    tone: Tone

    @property
    def name(self) -> str:
        """The variant, and the precision it came to where the name does not say."""
        return self.variant if self.is_named_by_precision else f"{self.variant} → {self.precision}"

    @property
    def is_named_by_precision(self) -> bool:
        """Whether the variant's name already says its precision."""
        return self.precision in {NOTHING, self.variant.partition("+")[0]}

    @property
    def step_and_iqr(self) -> str:
        """Median and, in brackets, the distance of the quartiles."""
        return self.step if self.iqr == NOTHING else f"{self.step} ({self.iqr})"


def rows(comparison: Comparison) -> tuple[Row, ...]:
    """The comparison's table as text, one row a variant."""
    return tuple(_row(summary) for summary in comparison.variants)


def peak_bytes(summary: VariantSummary) -> int | None:
    """The variant's peak: of tensors where storages were counted, else what the allocator gave out."""
    return summary.peak_allocated_bytes if summary.peak_tensor_bytes is None else summary.peak_tensor_bytes


def has_finite_outputs(summary: VariantSummary) -> bool:
    """Whether no output was infinite or NaN where fp32's was not."""
    return summary.outputs is None or math.isfinite(summary.outputs.relative_error)


def tone_of(summary: VariantSummary) -> Tone:
    """How to take a variant's outcome."""
    if summary.error is not None or not has_finite_outputs(summary):
        return Tone.BAD
    match summary.verdict:
        case None:
            return Tone.PLAIN
        case Verdict.IDENTICAL | Verdict.WITHIN_NOISE:
            return Tone.GOOD
        case Verdict.DRIFTING:
            return Tone.CAUTION
        case Verdict.DIVERGED:
            return Tone.BAD
        case _:
            assert_never(summary.verdict)


def figure(value: float | None, form: Callable[[float], str]) -> str:
    """A figure by ``form``; a dash for none, its name for one that is not finite."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return str(float(value))
    return form(value) if abs(value) < 1e15 else f"{value:.3g}"


def loss(value: float) -> str:
    """A loss to four digits."""
    return f"{value:.4g}"


def rate(value: float) -> str:
    """Samples per second to three digits, thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def scale(value: float) -> str:
    """A loss scale, whole where it is."""
    return f"{value:,.0f}" if value.is_integer() and value < 1e9 else f"{value:g}"


def hours(value: float) -> str:
    """Hours in the unit that keeps them readable."""
    return format_ms(value * MS_PER_HOUR)


def difference(value: float) -> str:
    """A relative error, as a share to two digits; fp32's own to itself is 0."""
    return "0" if value == 0 else f"{value:.1e}"


def share(value: float) -> str:
    """A share in hundredths."""
    return f"{value:.1%}"


def _row(summary: VariantSummary) -> Row:
    return Row(
        variant=inert_line(summary.variant, max_length=60),
        precision=inert_line(summary.precision or NOTHING, max_length=60),
        step=figure(summary.step_ms_median, format_ms),
        iqr=figure(summary.step_ms_iqr, format_ms),
        speed=figure(summary.ratio_time, format_ratio),
        rate=figure(summary.samples_per_second, rate),
        projected=figure(summary.projected_hours, hours),
        loss=figure(summary.final_loss, loss),
        verdict=_verdict(summary),
        reason=inert_line(summary.verdict_reason or "", max_length=400),
        memory=figure(peak_bytes(summary), format_bytes),
        saving=figure(summary.ratio_memory, format_ratio),
        skipped=str(summary.num_skipped) if summary.error is None else NOTHING,
        scale=figure(summary.final_scale, scale),
        difference=figure(None if summary.outputs is None else summary.outputs.relative_error, difference),
        flips=figure(None if summary.outputs is None else summary.outputs.flips, share),
        error=None if summary.error is None else inert_line(summary.error, max_length=400),
        tone=tone_of(summary),
    )


def _verdict(summary: VariantSummary) -> str:
    if summary.error is not None:
        return "failed"
    return NOTHING if summary.verdict is None else summary.verdict.value
