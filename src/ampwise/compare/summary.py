"""Boils a variant's runs down to its row of the table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from ampwise._base.text import inert_line
from ampwise._base.units import MS_PER_HOUR
from ampwise.compare.losses import final_loss, first_curve
from ampwise.compare.outputs import judge_outputs, output_distance
from ampwise.compare.parity import Judgement, judge, judge_reference
from ampwise.compare.variants import Variant
from ampwise.records.comparison import VariantSummary
from ampwise.records.run import RunEnd, RunRecord, timed_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """What the finished runs of a variant measured."""

    step_ms: float | None
    step_ms_iqr: float | None
    samples_per_step: float | None
    final_loss: float | None
    peak_tensor_bytes: int | None
    peak_allocated_bytes: int | None


def summarise(
    variant: Variant,
    runs: Sequence[RunRecord],
    *,
    fp32: Sequence[RunRecord],
    first: Sequence[RunRecord],
    project_steps: int | None = None,
) -> VariantSummary:
    """The row of ``variant``.

    Args:
        variant: What was run.
        runs: Its runs, failed ones too.
        fp32: All runs of fp32, its judge.
        first: The runs of the first variant, which the ratios are to.
        project_steps: Steps of the training whose hours are projected.
    """
    figures, base = _figures(runs), _figures(first)
    distance = output_distance(runs, fp32=fp32)
    if distance is not None:
        judgement = judge_outputs(distance, is_reference=variant.is_fp32)
    else:
        judgement = judge_reference(fp32) if variant.is_fp32 else judge(runs, fp32=fp32)
    has_finished = any(run.has_finished for run in runs)
    return VariantSummary(
        variant=variant.name,
        precision=next((run.precision for run in runs if run.has_finished), None),
        step_ms_median=figures.step_ms,
        step_ms_iqr=figures.step_ms_iqr,
        samples_per_second=_per_second(figures),
        projected_hours=_hours(figures.step_ms, project_steps),
        final_loss=figures.final_loss,
        verdict=judgement.verdict if has_finished else None,
        verdict_reason=_with_failures(judgement, runs) if has_finished else None,
        peak_tensor_bytes=figures.peak_tensor_bytes,
        peak_allocated_bytes=figures.peak_allocated_bytes,
        num_skipped=sum(run.num_skipped for run in runs if run.has_finished),
        final_scale=next((run.final_scale for run in reversed(runs) if run.has_finished), None),
        ratio_time=_ratio(base.step_ms, figures.step_ms),
        ratio_memory=_ratio(base.peak_tensor_bytes, figures.peak_tensor_bytes)
        or _ratio(base.peak_allocated_bytes, figures.peak_allocated_bytes),
        error=None if has_finished else error_line(runs),
        outputs=distance,
    )


def error_line(runs: Sequence[RunRecord]) -> str:
    """The script's error in one line."""
    failed = next((run for run in runs if not run.has_finished), None)
    if failed is None:
        return "not run"
    prefix = {RunEnd.OUT_OF_MEMORY: "out of memory: ", RunEnd.NO_STEPS: "no training step found"}.get(failed.end, "")
    if failed.failure is None:
        return prefix or failed.end.value
    failure = failed.failure
    is_exception = failure.kind.isidentifier()
    lines = [line for line in failure.message.splitlines() if line.strip()]
    message = (failure.message if is_exception else lines[-1] if lines else "").strip()
    where = f" (at {failure.where})" if failure.where else ""
    return inert_line(f"{prefix}{failure.kind}{': ' if message else ''}{message}{where}", max_length=400)


def _figures(runs: Sequence[RunRecord]) -> _Figures:
    finished = [run for run in runs if run.has_finished]
    steps = [step for run in finished for step in timed_steps(run)]
    times = [step.time_ms for step in steps if step.time_ms is not None]
    samples = [step.num_samples for step in steps if step.num_samples is not None]
    losses = [loss for run in finished if (loss := final_loss(first_curve(run))) is not None]
    return _Figures(
        step_ms=median(times) if times else None,
        step_ms_iqr=_iqr(times),
        samples_per_step=median(samples) if samples else None,
        final_loss=fmean(losses) if losses else None,
        peak_tensor_bytes=_largest(run.peak_tensor_bytes for run in finished),
        peak_allocated_bytes=_largest(run.peak_allocated_bytes for run in finished),
    )


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _iqr(times: Sequence[float]) -> float | None:
    if len(times) < 2:
        return None
    lower, _, upper = quantiles(times, n=4, method="inclusive")
    return upper - lower


def _per_second(figures: _Figures) -> float | None:
    if not figures.step_ms or figures.samples_per_step is None:
        return None
    return figures.samples_per_step / figures.step_ms * 1_000


def _hours(step_ms: float | None, project_steps: int | None) -> float | None:
    return None if step_ms is None or project_steps is None else step_ms * project_steps / MS_PER_HOUR


def _ratio(first: float | None, this: float | None) -> float | None:
    return first / this if first is not None and this else None


def _with_failures(judgement: Judgement, runs: Sequence[RunRecord]) -> str:
    failed = [run for run in runs if not run.has_finished]
    return judgement.reason + (f"; {len(failed)} of {len(runs)} runs failed: {error_line(failed)}" if failed else "")
