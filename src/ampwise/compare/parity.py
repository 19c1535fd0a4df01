"""Judges a variant's loss against fp32's own run-to-run noise.

What is compared. Runs with the same number have the same seeds, so a variant's run and fp32's run of that number see
the same weights and batches: their *gap* is the mean difference of the losses over the second half of the steps.

What it is compared with. fp32's *noise* is what another seed does to that mean:
``sqrt(D^2 + s^2)``, D the mean difference of two fp32 seeds over the second half, s the standard error of D from the
means of eight blocks (so that two seeds that agree by luck do not make the noise zero), and never less than 2^-9 of
the loss, the rounding of one bf16 number. With more than two fp32 seeds, all pairs are averaged.

Verdicts. ``drifting``: in every repeat, to the same side, the gap exceeds 3 times the noise (5 times where there is
one repeat only: nothing then says that the gap would come again). ``diverged``: losses end as nan or infinity where
fp32's do not, or in some repeat the gap exceeds 10 times the noise, half of fp32's loss, and three quarters of all that
fp32 gained. A skipped step leaves a variant one update behind, so as many of fp32's mean steps are allowed for.

False alarms, simulated (``tests/laws/test_parity.py``) for 60 steps and a variant as far from fp32 as a new seed, which
is more than rounding does: 0.1 % where batches make the noise; where the seed itself makes all of it, which two seeds
can hardly show, 7 % (10 % with one repeat). None for a variant that only rounds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median, stdev

from ampwise.compare.losses import Curve, all_finite, block_means, curves, first_curve, is_finite
from ampwise.records.comparison import Verdict
from ampwise.records.run import RunRecord

_MIN_STEPS = 8
_NUM_BLOCKS = 8
_ROUNDING = 2.0**-9
"""Unit roundoff of bf16."""
_FAR = 10.0
_TOO_LITTLE = f"that takes two fp32 seeds of at least {_MIN_STEPS} steps with a finite {{name}}"
_SEVERITY = (Verdict.IDENTICAL, Verdict.WITHIN_NOISE, Verdict.DRIFTING, Verdict.DIVERGED)

Repeats = Mapping[int, Curve]
"""The same optimizer's loss curve in each repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict and what it stands on; no verdict where the runs cannot say."""

    verdict: Verdict | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How far fp32 is from itself, over the second half of the steps."""

    num_steps: int
    level: float
    """Median size of the loss."""
    size: float
    """What another seed does to the mean loss."""
    slope: float
    """What one step does to the loss."""
    gained: float
    """What all steps did to the loss."""


def judge(runs: Sequence[RunRecord], *, fp32: Sequence[RunRecord]) -> Judgement:
    """Judge the runs of one variant against fp32's runs of the same seeds; runs that did not finish are left out."""
    theirs = {run.repeat: run for run in fp32 if run.has_finished}
    ours = {run.repeat: run for run in runs if run.has_finished and run.repeat in theirs}
    if not ours:
        return Judgement(verdict=None, reason=_nothing_to_compare(runs, has_fp32=bool(theirs)))
    if all(_is_same(curves(run), curves(theirs[repeat])) for repeat, run in ours.items()):
        return _identical(ours)
    series = sorted({optimizer for run in ours.values() for optimizer in curves(run)})
    judged = [
        _judge_series(optimizer, ours, theirs, name=f"optimizer {optimizer}'s loss" if len(series) > 1 else "loss")
        for optimizer in series
    ]
    return max(judged, key=lambda one: _SEVERITY.index(one.verdict) if one.verdict else -1)


def judge_reference(fp32: Sequence[RunRecord]) -> Judgement:
    """What fp32's own row says: no verdict, but how far its seeds are from each other."""
    noise = measure_noise({run.repeat: first_curve(run) for run in fp32 if run.has_finished})
    if noise is None:
        return Judgement(verdict=None, reason=f"the reference; its noise is unknown: {_TOO_LITTLE.format(name='loss')}")
    share = f" ({noise.size / noise.level:.2%})" if noise.level else ""
    reason = f"the reference; its noise between seeds over the last {noise.num_steps} steps is {noise.size:.3g}{share}"
    return Judgement(verdict=None, reason=reason)


def measure_noise(fp32: Repeats) -> Noise | None:
    """How far fp32's repeats are from each other; None for fewer than two or for fewer than eight finite losses."""
    num_all = min((len(curve) for curve in fp32.values()), default=0)
    finite = all(all_finite(curve[:num_all]) for curve in fp32.values())
    if len(fp32) < 2 or num_all < _MIN_STEPS or not finite:
        return None
    kept = [curve[:num_all] for curve in fp32.values()]
    tails = [curve[num_all - num_all // 2 :] for curve in kept]
    pairs = [_gap_and_error(one, other) for one, other in combinations(tails, 2)]
    level = fmean(median(abs(loss) for loss in tail) for tail in tails)
    size = math.sqrt(fmean(gap**2 + error**2 for gap, error in pairs))
    half = len(tails[0]) // 2
    slope = fmean(abs(fmean(tail[half:]) - fmean(tail[:half])) / half for tail in tails)
    gained = fmean(fmean(curve[: max(1, num_all // 10)]) - fmean(tail) for curve, tail in zip(kept, tails, strict=True))
    return Noise(
        num_steps=len(tails[0]), level=level, size=max(size, _ROUNDING * level), slope=slope, gained=abs(gained)
    )


def judge_curves(variant: Repeats, *, fp32: Repeats, num_skipped: int = 0, name: str = "loss") -> Judgement:
    """Judge one optimizer's loss curves against fp32's, each by its repeat.

    Args:
        variant: The curves judged; only repeats that fp32 has too are used.
        fp32: fp32's curves.
        num_skipped: Steps that the variant left out in its worst repeat.
        name: What to call the loss in the reason.
    """
    if any(map(is_broken, fp32.values())):
        return Judgement(verdict=None, reason=f"no reference: fp32's own {name} is not finite")
    broken = next((curve for curve in variant.values() if is_broken(curve)), None)
    if broken is not None:
        return Judgement(verdict=Verdict.DIVERGED, reason=_breaks(broken, name))
    noise = measure_noise(fp32)
    repeats = sorted(variant.keys() & fp32.keys())
    gaps = [gap for repeat in repeats if (gap := mean_gap(variant[repeat], fp32[repeat])) is not None] if noise else []
    if noise is None or not gaps:
        return Judgement(verdict=None, reason=f"not judged: {_TOO_LITTLE.format(name=name)}")
    allowed = num_skipped * noise.slope
    return Judgement(
        verdict=_verdict(gaps, noise, allowed=allowed), reason=_reason(gaps, noise, allowed=allowed, name=name)
    )


def _verdict(gaps: Sequence[float], noise: Noise, *, allowed: float) -> Verdict:
    if max(map(abs, gaps)) - allowed > max(_FAR * noise.size, noise.level / 2, noise.gained * 3 / 4):
        return Verdict.DIVERGED
    one_side = all(gap > 0 for gap in gaps) or all(gap < 0 for gap in gaps)
    if one_side and min(map(abs, gaps)) - allowed > _limit(len(gaps)) * noise.size:
        return Verdict.DRIFTING
    return Verdict.WITHIN_NOISE


def _limit(num_repeats: int) -> float:
    return 3.0 if num_repeats > 1 else 5.0


def _reason(gaps: Sequence[float], noise: Noise, *, allowed: float, name: str) -> str:
    mean = fmean(gaps)
    side = "above" if mean > 0 else "below"
    share = f" ({abs(mean) / noise.level:.2%})" if noise.level else ""
    limit = _limit(len(gaps)) * noise.size + allowed
    each = f"repeats {', '.join(f'{gap:+.3g}' for gap in gaps)}" if len(gaps) > 1 else "one repeat"
    skips = ", skipped steps allowed for" if allowed else ""
    return (
        f"mean {name} of the last {noise.num_steps} steps is {abs(mean):.3g}{share} {side} fp32's with the same seeds "
        f"({each}); fp32's own noise between seeds is {noise.size:.3g}, drifting begins at {limit:.3g}{skips}"
    )


def mean_gap(curve: Curve, fp32: Curve) -> float | None:
    """Mean difference over the second half, of the losses that are finite in both."""
    num_steps = min(len(curve), len(fp32))
    start = num_steps - num_steps // 2
    pairs = zip(curve[start:num_steps], fp32[start:num_steps], strict=True)
    differences = [one - other for one, other in pairs if is_finite(one) and is_finite(other)]
    return fmean(differences) if len(differences) * 4 >= _MIN_STEPS else None


def _gap_and_error(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Mean difference, and its standard error from the means of blocks: they forgive what neighbours share."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    means = block_means(differences, num_blocks=min(_NUM_BLOCKS, len(differences)))
    return fmean(differences), stdev(means) / math.sqrt(len(means))


def _judge_series(
    optimizer: int, ours: Mapping[int, RunRecord], theirs: Mapping[int, RunRecord], *, name: str
) -> Judgement:
    return judge_curves(
        {repeat: curves(run).get(optimizer, ()) for repeat, run in ours.items()},
        fp32={repeat: curves(run).get(optimizer, ()) for repeat, run in theirs.items()},
        num_skipped=max(
            sum(step.skipped for step in run.steps if step.optimizer == optimizer) for run in ours.values()
        ),
        name=name,
    )


def _is_same(one: Mapping[int, Curve], other: Mapping[int, Curve]) -> bool:
    """Bit for bit; nan equals nan."""
    return {key: tuple(map(float.hex, curve)) for key, curve in one.items()} == {
        key: tuple(map(float.hex, curve)) for key, curve in other.items()
    }


def _identical(runs: Mapping[int, RunRecord]) -> Judgement:
    num_losses = sum(len(curve) for run in runs.values() for curve in curves(run).values())
    if not num_losses:
        return Judgement(verdict=None, reason="not judged: no loss was seen")
    return Judgement(
        verdict=Verdict.IDENTICAL, reason=f"all {num_losses} losses equal fp32's with the same seeds, bit for bit"
    )


def is_broken(curve: Curve) -> bool:
    """Whether the last loss, or most of the second half, is not finite: a single one may belong to a skipped step."""
    tail = curve[len(curve) - len(curve) // 2 :]
    return not all_finite(curve[-1:]) or sum(map(is_finite, tail)) * 2 < len(tail)


def _breaks(curve: Curve, name: str) -> str:
    first = next(index for index, loss in enumerate(curve) if not is_finite(loss))
    count = len(curve) - sum(map(is_finite, curve))
    return f"{count} of {len(curve)} {name} values are not finite, the first at step {first + 1}; fp32's are"


def _nothing_to_compare(runs: Sequence[RunRecord], *, has_fp32: bool) -> str:
    if not any(run.has_finished for run in runs):
        return "not judged: no run finished"
    return (
        "not judged: no run has the same seeds as one of fp32's" if has_fp32 else "no reference: no fp32 run finished"
    )
