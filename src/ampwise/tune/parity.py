"""How far a run's losses are from fp32's, in units of what is tolerated."""

import math
from statistics import median

from ampwise._base.errors import CannotRunError
from ampwise.compare.losses import Curve, all_finite, curves
from ampwise.compare.parity import is_broken, mean_gap, measure_noise
from ampwise.records.run import RunRecord
from ampwise.records.tuning import NoiseRecord, TrialRecord
from ampwise.tune.lost import lost_updates

LEAST_STEPS = 8
"""Fewer losses have no second half to compare."""
_LEAST_TOLERANCE = 0.01
"""Share of the loss that is tolerated where fp32's own noise is smaller."""


def noise_of(first: RunRecord, again: RunRecord, other: RunRecord, *, tolerance: float | None) -> NoiseRecord:
    """How far fp32 is from itself, and what is therefore tolerated.

    Args:
        first: A run in fp32.
        again: With the same seeds.
        other: With another seed.
        tolerance: As a share of the loss; None allows what another seed does, and a hundredth of the loss at least.

    Raises:
        CannotRunError: there are no losses to compare, or fp32's own differ by more than the tolerance.
    """
    mine, same, theirs = (_curve(run) for run in (first, again, other))
    noise = measure_noise({0: mine, 1: theirs})
    if noise is None:
        seen = "1 loss was seen" if len(mine) == 1 else f"{len(mine)} losses were seen"
        raise CannotRunError(
            f"{seen} in fp32, and a plan is judged by the second half of at least {LEAST_STEPS}; let the script train "
            "longer; where it has several optimizers, raise --steps, which counts the steps of all"
        )
    tail = mine[len(mine) - len(mine) // 2 :]
    level = median(map(abs, tail))
    allowed = max(noise.size, _LEAST_TOLERANCE * level) if tolerance is None else tolerance * level
    record = NoiseRecord(
        level=level,
        rerun=abs(mean_gap(same, mine) or 0.0),
        seeds=noise.size,
        slope=noise.slope,
        allowed=allowed,
        num_steps=len(tail),
    )
    _refuse(record, is_same=same == mine, is_chosen=tolerance is not None)
    return record


def trial_of(run: RunRecord, *, fp32: RunRecord, noise: NoiseRecord, kept: tuple[str, ...], seed: int) -> TrialRecord:
    """What a run under a plan shows beside fp32's with the same seeds."""
    error, reason = _error(run, fp32, noise)
    return TrialRecord(kept=kept, seed=seed, error=error, reason=reason, left_alone=run.left_alone)


def _error(run: RunRecord, fp32: RunRecord, noise: NoiseRecord) -> tuple[float, str]:
    if not run.has_finished:
        lines = run.failure.message.strip().splitlines() if run.failure is not None else []
        return math.inf, f"the run fails{f': {lines[-1]}' if lines else ''}"
    second_half = run.steps[len(run.steps) // 2 :]
    if all(step.skipped for step in second_half):
        return math.inf, "every step of the second half is skipped, for its gradients are not finite"
    lost = lost_updates(run, fp32)
    if lost is not None:
        return math.inf, lost
    theirs = curves(fp32)
    found = [
        _curve_error(place, curve, theirs.get(place, ()), noise, num_skipped=run.num_skipped)
        for place, curve in curves(run).items()
    ]
    return max(found, default=(math.inf, "no loss was seen"))


def _curve_error(
    optimizer: int, curve: Curve, fp32: Curve, noise: NoiseRecord, *, num_skipped: int
) -> tuple[float, str]:
    name = "the loss" if optimizer == 0 else f"the loss of optimizer {optimizer}"
    if is_broken(curve):
        first = next((place for place, loss in enumerate(curve) if not all_finite([loss])), 0)
        return math.inf, f"{name} is not finite from step {first + 1} on"
    gap = mean_gap(curve, fp32)
    if gap is None:
        return math.inf, f"{name} has too few values to compare"
    share = abs(gap) / noise.level if noise.level else 0.0
    side = "above" if gap > 0 else "below"
    words = f"{name} is {100 * share:.2g} % {side} fp32's" if gap else f"{name} is fp32's"
    late = num_skipped * noise.slope  # a skipped step leaves the run one update behind
    behind = max(0.0, abs(gap) - late)
    if num_skipped and late and gap:
        steps = f"{num_skipped} skipped step{'s' * (num_skipped != 1)}"
        words += f", for which {steps} may account by {100 * late / noise.level if noise.level else 0.0:.2g} %"
    if noise.allowed:
        return behind / noise.allowed, words
    return (math.inf if behind else 0.0), words


def _refuse(noise: NoiseRecord, *, is_same: bool, is_chosen: bool) -> None:
    """Refuse noise beyond the tolerance; beyond the loss itself, too, unless so much is asked for.

    What another seed does is no measure where the seeds decide nothing: the tolerance would grow with the noise.
    """
    most, named = noise.allowed, f"the tolerance, {noise.allowed:.3g} ({noise.tolerance:.2%})"
    if not is_chosen and noise.level < noise.allowed:
        most, named = noise.level, f"the loss itself, {noise.level:.3g}"
    share = noise.rerun / noise.level if noise.level else math.inf
    if not is_same and noise.rerun > most:
        raise CannotRunError(
            f"two runs in fp32 with the same seeds differ by {noise.rerun:.3g} in their mean loss "
            f"({share:.2%}), which is more than {named}: nothing could be told from such runs. Let "
            "the script seed all it draws from (torch, numpy, its data loader's workers), or give a larger --tolerance"
        )


def _curve(run: RunRecord) -> Curve:
    found = curves(run)
    return found[min(found)] if found else ()
