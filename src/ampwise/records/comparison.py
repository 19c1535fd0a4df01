"""What several variants of one training script gained over the first."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.outputs import OutputDistance


class Verdict(StrEnum):
    """How a variant's loss compares with fp32's, measured by fp32's own run-to-run noise."""

    IDENTICAL = "identical"
    WITHIN_NOISE = "within noise"
    DRIFTING = "drifting"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSummary:
    """One row of the comparison: medians over all runs of a variant, ratios to the first variant."""

    __pydantic_config__: ClassVar = CHECKS

    variant: str
    """As the user wrote it."""
    precision: str | None
    """The format computed in; None where no run came so far."""
    step_ms_median: float | None
    step_ms_iqr: float | None
    """Distance between the quartiles of the step time."""
    samples_per_second: float | None
    projected_hours: float | None
    """Hours that ``project_steps`` steps would take."""
    final_loss: float | None
    """Mean of the last tenth of the losses (at least five)."""
    verdict: Verdict | None
    verdict_reason: str | None
    """What was compared, in words and numbers."""
    peak_tensor_bytes: int | None
    peak_allocated_bytes: int | None
    num_skipped: int
    final_scale: float | None
    ratio_time: float | None
    """First variant's median step time / this one's: above 1 is faster."""
    ratio_memory: float | None
    """First variant's peak / this one's: above 1 is smaller."""
    error: str | None
    """The script's error in one line, where no run of the variant finished."""
    outputs: OutputDistance | None = None
    """Of an evaluation: how far the outputs are from fp32's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The table: one row a variant, in the order asked for."""

    __pydantic_config__: ClassVar = CHECKS

    variants: tuple[VariantSummary, ...]
    num_steps: int
    """Optimizer steps asked for in each run; forward passes where only those are made."""
    num_repeats: int
    project_steps: int | None
    evaluates: bool = False
    """The script only evaluates: a step is a forward pass."""
