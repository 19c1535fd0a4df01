"""Laws of the precision scheduler's values, for whatever a training shows."""

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from adapting import fed
from ampwise.adapt.encoding import decode, encode
from ampwise.adapt.reading import Reading
from ampwise.adapt.state import Combinations, GroupState, Policy, SchedulerState
from ampwise.adapt.triggers import (
    AbsoluteLossCurvature,
    GradNormSpike,
    LossCurvature,
    LossSpike,
    NonFinite,
    OverflowShare,
    UnderflowShare,
)

NUM_GROUPS = 3
numbers = st.floats(width=32) | st.sampled_from([0.0, 1.0, math.inf, math.nan])
magnitudes = st.floats(min_value=0.0, width=32) | st.just(math.nan)
shares = st.floats(min_value=0.0, max_value=1.0)


def each(kind):
    return st.tuples(*[kind] * NUM_GROUPS)


readings = st.builds(
    Reading,
    loss=numbers | st.none(),
    is_skipped=st.booleans(),
    is_scaled=st.booleans(),
    norms=each(magnitudes) | st.just(()),
    suspects=each(st.sampled_from(["", "a.weight"])),
    peaks=each(magnitudes),
    shares=each(shares),
    vanished=each(shares) | st.just(()),
    raised=each(st.booleans()),
)
triggers = st.tuples(
    st.builds(LossCurvature, window=st.just(9), min_history=st.integers(1, 9)),
    st.builds(AbsoluteLossCurvature),
    st.builds(LossSpike, window=st.just(9), min_history=st.integers(1, 9)),
    st.builds(GradNormSpike, window=st.just(9), min_history=st.integers(1, 9)),
    st.builds(NonFinite, in_a_row=st.integers(1, 4)),
    st.builds(OverflowShare, above=st.floats(0.0, 0.9)),
    st.builds(UnderflowShare, above=st.floats(0.01, 0.9)),
)
policies = st.builds(
    Policy,
    quiet=st.integers(1, 5),
    cool_down=st.integers(0, 3),
    max_switches=st.integers(1, 7),
    hysteresis=st.floats(0.1, 1.0),
)
states = st.builds(SchedulerState, policy=policies, triggers=triggers, groups=st.just((GroupState(),) * NUM_GROUPS))


@given(states, st.lists(readings, max_size=12))
@settings(max_examples=60)
def test_any_readings_give_a_state_that_a_file_holds_and_that_goes_on_the_same(state, shown):
    half = len(shown) // 2
    before = repr(state)
    middle = fed(state, shown[:half])
    assert repr(state) == before
    data = encode(middle, Combinations(num_groups=NUM_GROUPS, limit=4).entered(middle.raised))
    beside = {"groups_by_name": list("abc"), "num_steps": 7, "num_low": [1, 2, 3], "scale": None}
    again, combinations, counts = decode({**data, **beside})
    assert again == middle
    assert (counts.names, counts.num_steps, counts.num_low, counts.scale) == (list("abc"), 7, [1, 2, 3], None)
    assert set(combinations.current) >= middle.raised
    json.dumps(data)  # plain data
    assert fed(again, shown[half:]) == fed(middle, shown[half:])


@given(states, st.lists(readings, max_size=30))
@settings(max_examples=60)
def test_what_moves_a_group_is_what_is_said_of_it(state, shown):
    """Up at what fires, at once where numbers are lost; down when calm for long enough; else not at all."""
    policy = state.policy
    for one in shown:
        verdicts, after = [trigger.judge(one) for trigger in state.triggers], state.observe(one)
        num_down = 0
        for place, (old, new) in enumerate(zip(state.groups, after.groups, strict=True)):
            fired = [verdict for verdict in verdicts if verdict.level(place) >= 1.0]
            urgent = [verdict for verdict in fired if verdict.is_urgent]
            is_soon = (
                old.num_switches > 0 and new.num_switches == old.num_switches + 1 and old.num_steps < policy.cool_down
            )
            if new.is_raised and not old.is_raised:
                assert fired
                assert urgent or not is_soon
                assert any(new.cause.startswith(verdict.cause(place)) for verdict in fired)
            elif old.is_raised and not new.is_raised:
                assert all(verdict.level(place) < policy.hysteresis for verdict in verdicts)
                assert old.num_quiet + 1 >= policy.quiet * 2**old.num_doublings
                assert not is_soon
                num_down += old.num_together > 1
            else:
                assert new.num_switches == old.num_switches
                assert new.num_steps == old.num_steps + 1
                assert new.is_raised or not urgent
        together = [old.num_together for old in state.groups if old.is_raised]
        assert num_down <= math.ceil(max(together, default=0) / 4)
        state = after


@given(states, st.lists(readings, max_size=30))
@settings(max_examples=60)
def test_no_group_moves_more_often_than_it_may_and_the_last_move_is_up(state, shown):
    end = fed(state, shown)
    for group in end.groups:
        assert group.num_switches <= state.policy.max_switches
        assert group.is_raised == bool(group.num_switches % 2)
        if group.num_switches == state.policy.max_switches:
            assert group.is_raised


@given(st.integers(1, 6), st.integers(2, 7), st.lists(st.sets(st.integers(0, 5)), max_size=20))
def test_what_is_wanted_up_is_up_in_few_combinations(num_groups, limit, wishes):
    one = Combinations(num_groups=num_groups, limit=min(limit, num_groups + 1))
    for wish in wishes:
        wanted = frozenset(wish) & frozenset(range(num_groups))
        before, one = one, one.entered(wanted)
        assert wanted <= set(one.current)
        assert set(one.current) in [set(used) for used in one.used]
        assert before.entered(wanted) == one
    assert len(one.used) <= one.limit
