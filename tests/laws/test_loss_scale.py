"""The laws of the loss scales, against torch's own transition."""

import json
import math
import pickle
import random

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from ampwise._base.errors import RecordError, UsageError
from ampwise.runtime.scaling.headroom import HeadroomLossScale
from ampwise.runtime.scaling.headroom_update import HeadroomRules, from_device, to_device
from ampwise.runtime.scaling.loss_scale import (
    PRESETS,
    DynamicLossScale,
    NoLossScale,
    StaticLossScale,
    as_fp32,
    decode,
    encode,
    get_loss_scale,
)
from ampwise.runtime.scaling.scale_update import ScaleRules, ScaleState, advance_

SCALES = st.floats(2.0**-126, 2.0**100, width=32)
FACTORS = {"growth_factor": st.floats(1.0, 8.0, exclude_min=True), "backoff_factor": st.floats(0.01, 0.99)}
DYNAMIC = st.builds(
    DynamicLossScale,
    scale=SCALES,
    **FACTORS,
    growth_interval=st.integers(1, 5),
    hysteresis=st.integers(1, 3),
)
WALKS = st.lists(st.booleans(), max_size=40)


def on_device(state):
    return ScaleState(
        scale=torch.tensor(state.scale),
        growth_tracker=torch.tensor(state.growth_tracker, dtype=torch.int32),
        num_overflows=torch.tensor(getattr(state, "num_overflows", 0), dtype=torch.int32),
    )


def rules_of(state):
    return ScaleRules(
        growth_factor=state.growth_factor,
        backoff_factor=state.backoff_factor,
        growth_interval=state.growth_interval,
        min_scale=state.min_scale,
        max_scale=state.max_scale,
        hysteresis=state.hysteresis,
    )


@given(scale=SCALES, interval=st.integers(1, 5), walk=WALKS, **FACTORS)
def test_the_dynamic_scale_is_torchs_bit_for_bit(scale, growth_factor, backoff_factor, interval, walk):
    state = DynamicLossScale(
        scale=scale, growth_factor=growth_factor, backoff_factor=backoff_factor, growth_interval=interval
    )
    theirs, tracker = torch.tensor(scale), torch.tensor(0, dtype=torch.int32)
    for finite in walk:
        found = torch.tensor(0.0 if finite else 1.0)
        torch._amp_update_scale_(theirs, tracker, found, growth_factor, backoff_factor, interval)
        state = state.adjust(finite)
        if not state.min_scale < theirs.item() < state.max_scale:
            return  # torch leaves the bounds, ours does not
        assert state.scale == theirs.item()
        assert state.growth_tracker == tracker.item()


@given(state=DYNAMIC, walk=WALKS)
def test_the_scale_stays_a_finite_fp32_number_within_its_bounds(state, walk):
    for finite in walk:
        state = state.adjust(finite)
        assert state.min_scale <= state.scale <= state.max_scale
        assert as_fp32(state.scale) == state.scale


@given(state=DYNAMIC, walk=WALKS, floor=st.sampled_from([2.0**-126, 1.0]), ceiling=st.sampled_from([2.0**127, 2.0**24]))
def test_the_device_transition_is_the_values(state, walk, floor, ceiling):
    state = DynamicLossScale(**{**_fields(state), "min_scale": floor, "max_scale": ceiling})
    device, rules = on_device(state), rules_of(state)
    for finite in walk:
        state = state.adjust(finite)
        advance_(device, torch.tensor(0.0 if finite else 2.0), rules)
        assert device.scale.item() == state.scale
        assert device.growth_tracker.item() == state.growth_tracker
        assert state.hysteresis == 1 or device.num_overflows.item() == state.num_overflows


@given(state=st.one_of(DYNAMIC, st.just(NoLossScale()), st.builds(StaticLossScale, scale=SCALES)), walk=WALKS)
def test_every_field_survives_every_round_trip(state, walk):
    for finite in walk:
        state = state.adjust(finite)
    assert decode(encode(state)) == state
    assert pickle.loads(pickle.dumps(state)) == state
    assert type(state)(**_fields(state)) == state


@given(walk=WALKS)
def test_no_scale_and_a_static_scale_never_move(walk):
    for start in (NoLossScale(), StaticLossScale(scale=8.0)):
        state = start
        for finite in walk:
            state = state.adjust(finite)
        assert state == start


def test_hysteresis_waits_for_overflows_in_a_row():
    state = DynamicLossScale(scale=8.0, hysteresis=2)
    scales = []
    for finite in (False, True, False, False, False, True):
        state = state.adjust(finite)
        scales.append(state.scale)
    assert scales == [8.0, 8.0, 8.0, 4.0, 2.0, 2.0]


def test_all_faults_are_named_at_once():
    with pytest.raises(UsageError) as error:
        DynamicLossScale(scale=0.0, growth_factor=1.0, backoff_factor=1.5, growth_interval=0, min_scale=4, max_scale=2)
    for name in ("scale is 0.0", "growth_factor", "backoff_factor", "growth_interval", "min_scale 4 is above"):
        assert name in str(error.value)


@pytest.mark.parametrize(
    "data", [{}, {"kind": "headless"}, {"kind": "static", "scales": 1.0}, {"kind": "static", "scale": -1.0}]
)
def test_foreign_data_is_refused(data):
    with pytest.raises(RecordError):
        decode(data)


def _fields(state):
    return {name: value for name, value in encode(state).items() if name != "kind"}


# ------------------------------------------------------------------ headroom

HEADROOM = st.builds(
    HeadroomLossScale,
    scale=SCALES.filter(lambda scale: scale < 2.0**24),
    growth_interval=st.integers(1, 5),
    num_deviations=st.sampled_from([0.0, 1.0, 3.09]),
)
AMAX = st.floats(0.0, 2.0**100, width=32) | st.sampled_from([0.0, math.inf, math.nan, 2.0**-140]) | st.none()
STEPS = st.lists(st.tuples(st.booleans(), AMAX), max_size=40)


@given(state=HEADROOM, steps=STEPS)
def test_headroom_on_the_device_is_the_value(state, steps):
    device = on_device(state)
    device.statistics = to_device(state.statistics, torch.device("cpu"))
    for finite, amax in steps:
        state = state.adjust(finite, amax)
        found = torch.tensor(0.0 if finite else 2.0)
        advance_(device, found, HeadroomRules.of(state), amax=None if amax is None else torch.tensor(amax))
        assert device.scale.item() == state.scale
        assert device.growth_tracker.item() == state.growth_tracker
        assert from_device(device.statistics) == state.statistics


@given(state=HEADROOM, steps=STEPS)
def test_headroom_stays_within_its_bounds_and_survives_its_file(state, steps):
    for finite, amax in steps:
        state = state.adjust(finite, amax)
        assert state.min_scale <= state.scale <= state.max_scale
        assert decode(json.loads(json.dumps(encode(state)))) == state


@given(state=HEADROOM, steps=STEPS)
def test_an_overflow_never_leaves_headroom_at_the_scale_that_overflowed(state, steps):
    for finite, amax in steps:
        before, state = state.scale, state.adjust(finite, amax)
        assert finite or state.scale <= max(before / 2, state.min_scale)


def walk_headroom(exponents, *, hidden=0.0, state=None):
    """Steps whose largest gradient is 2^exponent; those of activations are 2^hidden larger. Gives states and skips."""
    state, skips = state or HeadroomLossScale(), 0
    states = []
    for exponent in exponents:
        finite = state.scale * 2.0 ** (exponent + hidden) < 65520
        skips += not finite
        state = state.adjust(finite, 2.0**exponent if finite else None)
        states.append(state)
    return states, skips


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), mean=st.floats(-20, 4), deviation=st.floats(0.0, 2.0))
def test_headroom_seldom_overflows_and_wastes_little_of_the_range(seed, mean, deviation):
    noise = random.Random(seed)
    states, skips = walk_headroom([noise.gauss(mean, deviation) for _ in range(1000)])
    settling = walk_headroom([noise.gauss(mean, deviation) for _ in range(500)], state=states[-1])[1]
    assert skips <= 40
    assert settling <= 10
    ideal = min(15 - mean - 3.09 * deviation, 24)
    assert ideal - 6 <= math.log2(states[-1].scale) <= ideal + 2


def test_headroom_keeps_clear_of_gradients_it_does_not_see():
    states, skips = walk_headroom([-3.5] * 9000, hidden=8.0)
    assert math.log2(states[-1].scale) in {9, 10, 11}
    assert skips < 15


def test_headroom_follows_a_slow_drift_without_an_overflow():
    start = walk_headroom([-2.5] * 100)[0][-1]
    states, skips = walk_headroom([-2.5 + step / 500 for step in range(5000)], state=start)
    assert skips == 0
    assert states[-1].scale < start.scale


@pytest.mark.parametrize(
    ("given_", "kind"), [("headroom", HeadroomLossScale), ("rl", DynamicLossScale), (8, StaticLossScale)]
)
def test_a_preset_a_number_or_a_state_is_a_loss_scale(given_, kind):
    assert type(get_loss_scale(given_)) is kind
    assert get_loss_scale(get_loss_scale(given_)) == get_loss_scale(given_)


def test_presets_start_where_their_field_does():
    scales = {name: state.scale for name, state in PRESETS.items()}
    assert scales == {
        "none": 1.0,
        "static": 2.0**16,
        "dynamic": 2.0**16,
        "headroom": 2.0**16,
        "diffusion": 2.0**12,
        "rl": 2.0**12,
    }


@pytest.mark.parametrize(
    ("given_", "told"),
    [("headrom", 'did you mean "headroom"'), (None, "loss_scale is None"), (True, "True"), (-1.0, "positive finite")],
)
def test_what_is_no_loss_scale_is_refused(given_, told):
    with pytest.raises(UsageError, match=told):
        get_loss_scale(given_)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"scale": 0.0}, "scale is 0.0"),
        ({"min_scale": 4.0, "max_scale": 2.0}, "above max_scale"),
        ({"num_deviations": -1.0}, "num_deviations"),
        ({"growth_interval": 0}, "growth_interval"),
    ],
)
def test_an_impossible_headroom_is_refused(options, fault):
    with pytest.raises(UsageError, match=fault):
        HeadroomLossScale(**options)
