"""When groups move: quiet periods, cool-down, hysteresis, the cap; and how many combinations there are."""

from dataclasses import replace

import pytest

from adapting import reading
from ampwise import UsageError
from ampwise.adapt.reading import Verdict
from ampwise.adapt.state import Combinations, GroupState, Policy, SchedulerState
from ampwise.adapt.triggers import NonFinite, OverflowShare

CALM = reading()
HIGH, HALF = reading(shares=(0.02, 0.0)), reading(shares=(0.006, 0.0))
LOST = reading(peaks=(float("nan"), 1.0))


def state(**policy):
    given = {"quiet": 3, "cool_down": 0, **policy}
    triggers = (OverflowShare(above=0.01), NonFinite())
    return SchedulerState(policy=Policy(**given), triggers=triggers, groups=(GroupState(),) * 2)


def walk(start, *readings):
    """Whether the first group is up after each."""
    seen = []
    for one in readings:
        start = start.observe(replace(one, raised=tuple(group.is_raised for group in start.groups)))
        seen.append(start.groups[0].is_raised)
    return seen, start


def test_up_at_once_and_down_after_the_quiet_period():
    seen, end = walk(state(), CALM, HIGH, CALM, CALM, CALM, CALM)
    assert seen == [False, True, True, True, False, False]
    assert end.groups[0].cause == "quiet for 3 steps"
    assert end.groups[1] == GroupState(num_steps=6)  # the other group had no part in it


def test_what_is_below_the_threshold_but_not_calm_keeps_a_group_up():
    assert walk(state(), HIGH, CALM, CALM, HALF, CALM, CALM, CALM)[0] == [*[True] * 6, False]
    assert walk(state(hysteresis=1.0), HIGH, CALM, CALM, HALF, CALM)[0] == [*[True] * 3, False, False]
    assert walk(state(), HALF, HALF)[0] == [False, False]


def test_within_the_cool_down_only_lost_numbers_move_a_group():
    loud = replace(state(cool_down=4), triggers=(_Loud(), NonFinite()))
    high = reading(loss=9.0)
    seen, _ = walk(loud, high, CALM, CALM, CALM, CALM)
    assert seen == [True, True, True, True, True]  # quiet for 3, but moved 4 steps ago
    seen, down = walk(loud, high, *[CALM] * 5)
    assert seen[-1] is False
    assert walk(down, *[high] * 4)[0] == [False] * 4
    assert walk(down, *[high] * 5)[0][-1] is True
    assert walk(down, LOST)[0] == [True]


class _Loud:
    """Fires at a loss of 9 for all groups together, and is not urgent."""

    def judge(self, one):
        return Verdict(levels=(1.0 if one.loss == 9.0 else 0.0,), causes=("loud",))

    def observe(self, _):
        return self


def of_five(**policy):
    given = {"quiet": 12, "cool_down": 3, **policy}
    return SchedulerState(policy=Policy(**given), triggers=(_Loud(), NonFinite()), groups=(GroupState(),) * 5)


def moves(start, *readings):
    """The steps in which groups moved, with those that are up from then on."""
    seen = []
    for step, one in enumerate(readings):
        end = start.observe(one)
        if end.raised != start.raised:
            seen.append((step, "".join(map(str, sorted(end.raised)))))
        start = end
    return seen, start


def five(loss=1.0, **fields):
    return reading(loss, norms=(), suspects=(), peaks=(1.0,) * 5, shares=(0.0,) * 5, raised=(False,) * 5, **fields)


QUIET, LOUD = five(), five(9.0)
DOWN = [(0, "01234"), (12, "234"), (23, "4"), (34, "")]


def test_groups_that_went_up_together_come_down_a_portion_at_a_time():
    assert moves(of_five(), LOUD, *[QUIET] * 40)[0] == DOWN
    assert moves(of_five(cool_down=20, quiet=21), LOUD, *[QUIET] * 70)[0] == [
        *[(0, "01234"), (21, "234")],
        *[(42, "4"), (63, "")],
    ]


def test_who_brings_the_fault_back_goes_up_alone_and_the_others_come_down():
    def training(first, end):
        """Loud where the first group is down."""
        start, seen = of_five(), []
        for step in range(end):
            before, loud = start.raised, step >= first and 0 not in start.raised
            start = start.observe(LOUD if loud else QUIET)
            if start.raised != before:
                seen.append((step, "".join(map(str, sorted(start.raised))), [g.is_blamed for g in start.groups]))
        return seen, start

    seen, end = training(0, 70)
    assert [(step, up) for step, up, _ in seen] == [
        (0, "01234"),
        (12, "234"),
        (16, "01234"),  # the cool-down of three steps is over
        (27, "014"),  # what group 0 did is not held against these
        (38, "01"),
        (49, "1"),  # twice as long as the first time
        (53, "01"),
        (64, "0"),
    ]
    assert seen[2][2] == [True, True, False, False, False]
    assert end.groups[0].cause == "loud; it had just come down"


def test_a_fault_that_stays_although_the_blamed_are_up_moves_all():
    _, down = moves(of_five(), LOUD, *[QUIET] * 34)
    assert down.raised == frozenset()
    assert moves(down, *[QUIET] * 3, *[LOUD] * 14)[0] == [(3, "4"), (14, "01234")]
    # long after the last came down nobody is under suspicion
    assert moves(down, *[QUIET] * 21, LOUD)[0] == [(21, "01234")]


def test_where_numbers_are_lost_nobody_waits_to_see_who_is_to_blame():
    _, down = moves(of_five(), LOUD, *[QUIET] * 34)
    lost = five(float("nan"))
    assert moves(down, lost)[0] == [(0, "01234")]


def test_a_group_that_comes_back_soon_stays_up_twice_as_long():
    once = [HIGH, *[CALM] * 3]
    _, down = walk(state(), *once)
    assert not down.groups[0].is_raised
    assert walk(down, HIGH, *[CALM] * 6)[0] == [*[True] * 6, False]
    assert walk(down, *[CALM] * 3, HIGH, *[CALM] * 3)[0][-1] is False  # not soon: as long as the first time


@pytest.mark.parametrize(("max_switches", "num_moves"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5)])
def test_the_last_move_is_up(max_switches, num_moves):
    seen, end = walk(state(max_switches=max_switches), *[HIGH, *[CALM] * 200] * 6)
    assert end.groups[0].num_switches == num_moves
    assert seen[-1]
    assert end.groups[0].cause.endswith("; it stays, for max_switches")


def test_the_old_state_is_as_it_was():
    first = state()
    before = repr(first)
    first.observe(HIGH)
    assert repr(first) == before


@pytest.mark.parametrize("name", ["quiet", "cool_down", "max_switches", "hysteresis"])
def test_a_policy_that_cannot_be_meant(name):
    with pytest.raises(UsageError, match=f"PrecisionScheduler: {name} is -1"):
        Policy(**{name: -1})


def test_combinations_are_exact_while_there_is_room_and_then_wider():
    one = Combinations(num_groups=4, limit=4)
    seen = []
    for wanted in ({0}, {1}, {0, 1}, {2}, {1}, set(), {0, 1, 2, 3}, {3}):
        one = one.entered(frozenset(wanted))
        seen.append(set(one.current))
    everything = {0, 1, 2, 3}
    assert seen == [{0}, {1}, everything, everything, {1}, set(), everything, everything]
    assert len(one.used) == 4


def test_two_groups_need_no_more_than_one_more_combination_each():
    one = Combinations(num_groups=2, limit=3)
    assert [one.entered(frozenset(wanted)).current for wanted in ([0], [1], [0, 1])] == [(0,), (1,), (0, 1)]
    assert one.entered(frozenset({0})).entered(frozenset({1})).current == (0, 1)
