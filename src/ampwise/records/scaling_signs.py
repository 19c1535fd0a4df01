"""The three signs that loss scaling fails, read off a history: explosion, underflow, oscillation.

A healthy run shows none: a scale that settles in its first steps, then grows and falls back once in every growth
interval, with gradients whose norm changes by less than 100 times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from statistics import median
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.scaling import History, HistoryRow

EXPLOSION_FACTOR = 100.0
"""Growth of the gradient norm's median that no healthy training shows within a thousand steps."""
NUM_RECENT, NUM_BEFORE = 10, 20
"""Norms that a growth is judged by: the last ones, against at least as many before them."""
NUM_SKIPS_IN_A_ROW = 40
"""Settling from 2^16 takes at most 16 skips, with a hysteresis of 2 twice as many."""
SUBNORMAL_SHARE = 0.25
"""Of the gradients that are not zero: with more below fp16's normal numbers, many beside them have become zero."""
NUM_SAMPLES = 3
NUM_TURNS = 6
SKIPPED_SHARE = 0.02
"""Torch's dynamic scale, settled, skips one step in 2000."""


class SignKind(StrEnum):
    """What goes wrong."""

    EXPLOSION = "explosion"
    """The gradients grow without bound, or overflow at every scale."""
    UNDERFLOW = "underflow"
    """Gradients become zero at this scale."""
    OSCILLATION = "oscillation"
    """The scale saws between values and skips steps each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One sign of failure, with what shows it and what to do."""

    __pydantic_config__: ClassVar = CHECKS

    kind: SignKind
    first_step: int
    last_step: int
    what: str
    """The evidence, in a sentence."""
    remedy: str


def signs(history: History) -> tuple[Sign, ...]:
    """The signs of failure in the history; none in a healthy run's.

    Law: none depends on the unit of the loss: norms times a constant, with scales divided by it, give the same signs.
    """
    rows = history.rows
    found = (_overflow_everywhere(rows) or _growth(rows), _underflow(rows), _oscillation(rows))
    return tuple(sign for sign in found if sign is not None)


def _overflow_everywhere(rows: Sequence[HistoryRow]) -> Sign | None:
    runs = [(skipped, list(run)) for skipped, run in groupby(rows, key=lambda row: row.skipped)]
    longest = max((run for skipped, run in runs if skipped), key=len, default=[])
    if len(longest) < NUM_SKIPS_IN_A_ROW:
        return None
    first, last = longest[0], longest[-1]
    return Sign(
        kind=SignKind.EXPLOSION,
        first_step=first.step,
        last_step=last.step,
        what=f"{len(longest)} steps in a row were skipped while the loss scale went from {first.scale:g} to "
        f"{last.scale:g}: no scale helps.",
        remedy="Look for what makes the forward pass infinite, or lower the learning rate.",
    )


def _growth(rows: Sequence[HistoryRow]) -> Sign | None:
    known = [(row.step, row.grad_norm) for row in rows if row.grad_norm is not None and not row.skipped]
    if len(known) < NUM_RECENT + NUM_BEFORE:
        return None
    before = median(norm for _, norm in known[:-NUM_RECENT])
    recent = median(norm for _, norm in known[-NUM_RECENT:])
    if not before > 0.0 or recent < EXPLOSION_FACTOR * before:
        return None
    return Sign(
        kind=SignKind.EXPLOSION,
        first_step=known[-NUM_RECENT][0],
        last_step=known[-1][0],
        what=f"The gradient norm grew from {before:.3g} to {recent:.3g}, {recent / before:.0f} times.",
        remedy="Clip the norm, lower the learning rate or lengthen its warm-up; another loss scale does not help.",
    )


def _underflow(rows: Sequence[HistoryRow]) -> Sign | None:
    samples = [
        (row, row.zero_share, row.subnormal_share)
        for row in rows
        if row.zero_share is not None and row.subnormal_share is not None and not row.skipped
    ][-NUM_SAMPLES:]
    if len(samples) < NUM_SAMPLES:
        return None
    zero, subnormal = median(zero for _, zero, _ in samples), median(one for _, _, one in samples)
    if zero < 1.0 and subnormal < SUBNORMAL_SHARE * (1.0 - zero):
        return None
    first, last = samples[0][0], samples[-1][0]
    kept = "" if zero == 1.0 else f", and {subnormal / (1.0 - zero):.0%} of the others have lost digits"
    return Sign(
        kind=SignKind.UNDERFLOW,
        first_step=first.step,
        last_step=last.step,
        what=f"At a loss scale of {last.scale:g}, {zero:.0%} of the gradients are zero in fp16{kept}.",
        remedy='Raise the scale (init_scale=, min_scale=, loss_scale="headroom"), or give the small loss its own scale '
        "by a name; where larger scales overflow, use bf16.",
    )


def _oscillation(rows: Sequence[HistoryRow]) -> Sign | None:
    settled = next((place for place, row in enumerate(rows) if not row.skipped), len(rows))
    judged = rows[settled:]
    moves = [after.scale > before.scale for before, after in pairwise(judged) if after.scale != before.scale]
    num_turns = sum(one != other for one, other in pairwise(moves))
    num_skipped = sum(row.skipped for row in judged)
    if num_turns < NUM_TURNS or num_skipped < SKIPPED_SHARE * len(judged):
        return None
    scales = [row.scale for row in judged]
    return Sign(
        kind=SignKind.OSCILLATION,
        first_step=judged[0].step,
        last_step=judged[-1].step,
        what=f"The loss scale turned {num_turns} times between {min(scales):g} and {max(scales):g}, and "
        f"{num_skipped / len(judged):.1%} of the steps were skipped.",
        remedy='Lengthen growth_interval, set max_scale below the scale that overflows, or use loss_scale="headroom", '
        "which follows the gradients' measured size.",
    )
