"""How often the verdict on a loss is wrong, by simulation; and that no loss breaks it."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwise.compare.parity import judge_curves
from ampwise.records.comparison import Verdict

_TRIALS = 300


def falling(generator, *, batch, luck, bias=0.0, num_steps=60):
    """A falling loss: ``batch`` is each step's noise, ``luck`` the run's own, ``bias`` the share added by the end."""
    factor = 1 + luck * generator.gauss(0, 1)
    return tuple(
        factor * (1 + 2.3 * math.exp(-t / 25)) * (1 + bias * t / num_steps) + batch * generator.gauss(0, 1)
        for t in range(num_steps)
    )


def rate(verdicts, make):
    """How often ``make(generator)`` comes to one of ``verdicts``."""
    return fmean(make(random.Random(seed)).verdict in verdicts for seed in range(_TRIALS))


ALARMS = {Verdict.DRIFTING, Verdict.DIVERGED}


def another_seed(generator, *, batch, luck, num_repeats=2):
    """A variant as far from fp32 as a new seed: what no verdict should blame on the precision."""
    fp32 = {r: falling(generator, batch=batch, luck=luck) for r in range(2)}
    variant = {r: falling(generator, batch=batch, luck=luck) for r in range(num_repeats)}
    return judge_curves(variant, fp32=fp32)


@pytest.mark.parametrize("num_repeats", [1, 2])
def test_batch_noise_raises_few_alarms(num_repeats):
    assert rate(ALARMS, lambda g: another_seed(g, batch=0.1, luck=0.0, num_repeats=num_repeats)) <= 0.01


def test_luck_of_the_seed_raises_few_alarms():
    assert rate(ALARMS, lambda g: another_seed(g, batch=0.02, luck=0.05)) <= 0.12


def rounded(generator, *, bias):
    """A variant that follows fp32 with the same seeds, as rounding does, and is ``bias`` above it at the end."""
    fp32 = {r: falling(generator, batch=0.1, luck=0.01) for r in range(2)}
    variant = {
        r: tuple(loss * (1 + bias * t / 60 + 0.004 * generator.uniform(-1, 1)) for t, loss in enumerate(curve))
        for r, curve in fp32.items()
    }
    return judge_curves(variant, fp32=fp32)


def test_rounding_raises_no_alarm():
    assert rate(ALARMS, lambda g: rounded(g, bias=0.0)) == 0.0


def test_a_loss_a_fifth_too_high_is_found():
    assert rate(ALARMS, lambda g: rounded(g, bias=0.25)) >= 0.9


def test_a_loss_that_does_not_fall_is_found():
    def stuck(generator):
        fp32 = {r: falling(generator, batch=0.1, luck=0.01) for r in range(2)}
        return judge_curves(
            {r: tuple(3.3 + 0.1 * generator.gauss(0, 1) for _ in range(60)) for r in range(2)}, fp32=fp32
        )

    assert rate({Verdict.DIVERGED}, stuck) >= 0.99


LOSSES = st.lists(st.floats() | st.sampled_from([0.0, 1e-320, math.inf, math.nan, 1e308]), max_size=24).map(tuple)
REPEATS = st.dictionaries(st.integers(0, 2), LOSSES, max_size=3)


@given(variant=REPEATS, fp32=REPEATS, num_skipped=st.integers(0, 30))
def test_any_losses_come_to_a_judgement(variant, fp32, num_skipped):
    judgement = judge_curves(variant, fp32=fp32, num_skipped=num_skipped)
    assert judgement.reason
    if judgement.verdict is not None and judgement.verdict is not Verdict.DIVERGED:
        assert all(math.isfinite(curve[-1]) for curve in variant.values() if curve)


@given(fp32=REPEATS)
def test_fp32_itself_never_drifts(fp32):
    assert judge_curves(fp32, fp32=fp32).verdict in {None, Verdict.WITHIN_NOISE}


@given(scale=st.sampled_from([1e-6, 0.25, 1.0, 3.0, 1e6]), shift=st.floats(-1.0, 1.0))
def test_the_unit_of_the_loss_does_not_matter(scale, shift):
    generator = random.Random(3)
    fp32 = {r: falling(generator, batch=0.1, luck=0.01) for r in range(2)}
    variant = {r: tuple(loss + shift for loss in curve) for r, curve in fp32.items()}
    scaled_fp32, scaled = ({r: tuple(scale * x for x in c) for r, c in curves.items()} for curves in (fp32, variant))
    assert judge_curves(scaled, fp32=scaled_fp32).verdict is judge_curves(variant, fp32=fp32).verdict
