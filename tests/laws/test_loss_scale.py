"""The laws of the loss scales, against torch's own transition."""

import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from ampwise._base.errors import RecordError, UsageError
from ampwise.runtime.loss_scale import DynamicLossScale, NoLossScale, StaticLossScale, as_fp32, decode, encode
from ampwise.runtime.scale_update import ScaleRules, ScaleState, advance_

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
        num_overflows=torch.tensor(state.num_overflows, dtype=torch.int32),
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
