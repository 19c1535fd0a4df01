"""The laws of the signs of failure: a healthy run has none, a planted fault has its own, and units do not matter."""

import random
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ampwise.records.files import from_json, to_json
from ampwise.records.scaling import History, HistoryRow
from ampwise.records.scaling_signs import Sign, SignKind, signs
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

SEEDS = st.integers(0, 10_000)


def history(rows, *, first=0):
    return History(rows=tuple(HistoryRow(step=first + place, **row) for place, row in enumerate(rows)))


def run(seed, *, num_steps=400, limit=2.0**12, interval=2000, drift=0.0, norm=1.0, zero=0.1, subnormal=0.02):
    """A run under torch's dynamic scale whose gradients overflow above ``limit`` times a little noise."""
    noise, state, rows = random.Random(seed), DynamicLossScale(growth_interval=interval), []
    for step in range(num_steps):
        size = 2.0 ** noise.gauss(0.0, 0.3) * 2.0 ** (drift * step)
        skipped = state.scale * size > limit * 1.5
        sampled = step % 50 == 0
        rows.append(
            {
                "scale": state.scale,
                "skipped": skipped,
                "grad_norm": None if skipped else norm * size,
                "zero_share": zero if sampled else None,
                "subnormal_share": subnormal if sampled else None,
            }
        )
        state = state.adjust(finite=not skipped)
    return history(rows)


@settings(max_examples=25)
@given(
    seed=SEEDS,
    num_steps=st.integers(0, 600),
    limit=st.sampled_from([2.0, 2.0**12, 2.0**30]),
    norm=st.sampled_from([1e-6, 1.0, 1e6]),
    zero=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_a_healthy_run_has_none(seed, num_steps, limit, norm, zero):
    assert signs(run(seed, num_steps=num_steps, limit=limit, norm=norm, zero=zero, subnormal=0.2 * (1 - zero))) == ()


@settings(max_examples=25)
@given(seed=SEEDS, drift=st.sampled_from([0.05, 0.2]))
def test_gradients_that_grow_without_bound_explode(seed, drift):
    (sign,) = [one for one in signs(run(seed, drift=drift, num_steps=300)) if one.kind is not SignKind.OSCILLATION]
    assert sign.kind is SignKind.EXPLOSION
    assert "The gradient norm grew from" in sign.what
    assert sign.last_step >= 280


@given(num_before=st.integers(0, 50), num_skips=st.integers(40, 100))
def test_steps_that_are_skipped_at_every_scale_explode(num_before, num_skips):
    rows = [{"scale": 2.0**16, "skipped": False}] * num_before
    rows += [{"scale": 2.0 ** (16 - place), "skipped": True} for place in range(num_skips)]
    (sign,) = signs(history(rows))
    assert sign.kind is SignKind.EXPLOSION
    assert (sign.first_step, sign.last_step) == (num_before, num_before + num_skips - 1)
    assert f"{num_skips} steps in a row" in sign.what
    assert signs(history(rows[: num_before + 39])) == ()


@given(zero=st.floats(0.0, 1.0), share=st.floats(0.3, 1.0))
def test_gradients_that_run_into_the_floor_underflow(zero, share):
    (sign,) = signs(run(1, zero=zero, subnormal=(1 - zero) * share))
    assert sign.kind is SignKind.UNDERFLOW
    assert f"{zero:.0%} of the gradients are zero" in sign.what
    assert ("have lost digits" in sign.what) == (zero < 1.0)
    assert "headroom" in sign.remedy


def test_one_odd_sample_is_no_underflow():
    rows = list(run(1).rows)
    rows[-50] = replace(rows[-50], zero_share=1.0, subnormal_share=0.0)
    assert signs(History(rows=tuple(rows))) == ()


@settings(max_examples=25)
@given(seed=SEEDS, interval=st.integers(1, 20))
def test_a_scale_that_grows_into_overflow_again_and_again_oscillates(seed, interval):
    (sign,) = signs(run(seed, interval=interval, num_steps=400))
    assert sign.kind is SignKind.OSCILLATION
    assert "growth_interval" in sign.remedy


@settings(max_examples=25)
@given(seed=SEEDS, drift=st.sampled_from([0.0, 0.05]), power=st.integers(-20, 20), first=st.integers(0, 10**6))
def test_the_loss_unit_and_the_first_steps_number_do_not_matter(seed, drift, power, first):
    plain = run(seed, drift=drift)
    factor = 2.0**power
    scaled = History(
        rows=tuple(
            replace(
                row,
                step=row.step + first,
                scale=row.scale / factor,
                grad_norm=None if row.grad_norm is None else row.grad_norm * factor,
            )
            for row in plain.rows
        )
    )
    found = [(one.kind, one.first_step + first, one.last_step + first) for one in signs(plain)]
    assert [(one.kind, one.first_step, one.last_step) for one in signs(scaled)] == found


@pytest.mark.parametrize("made", [run(0, num_steps=60), run(0, drift=0.2, num_steps=200)])
def test_a_history_and_its_signs_survive_their_file(made):
    assert from_json(to_json(made), History) == made
    for sign in signs(made):
        assert from_json(to_json(sign), Sign) == sign
