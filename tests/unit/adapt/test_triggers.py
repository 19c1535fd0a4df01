"""Each trigger fires at what it is for, and at nothing else."""

import math

import pytest

from adapting import fed, reading
from ampwise import UsageError
from ampwise.adapt.encoding import get_trigger
from ampwise.adapt.schedule import Schedule
from ampwise.adapt.triggers import (
    AbsoluteLossCurvature,
    GradNormSpike,
    LossCurvature,
    LossSpike,
    NonFinite,
    OverflowShare,
    UnderflowShare,
)
from ampwise.adapt.usual import Usual

INF, NAN = math.inf, math.nan


def noisy(num=60, *, level=1.0, size=0.01):
    return [reading(level + size * math.sin(12.9898 * index)) for index in range(num)]


def fires(trigger, one):
    return max(trigger.judge(one).levels) >= 1.0


def test_the_usual_is_not_moved_by_outliers():
    assert Usual.of([1.0, 1.0, 2.0, 3.0, 1e9]) == Usual(median=2.0, deviation=1.4826)
    assert Usual(median=2.0, deviation=1.0).threshold(3.0) == 5.0
    assert Usual(median=2.0, deviation=0.0).threshold(3.0, at_least=1.0) == 3.0


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_curvature_is_large_against_its_own_history_whatever_the_loss_is(size):
    losses = [reading(size * one.loss) for one in noisy()]
    trigger = fed(LossCurvature(), losses)
    assert not any(fires(fed(LossCurvature(), losses[:at]), losses[at]) for at in range(30, 60))
    assert fires(trigger, reading(size * 1.5))
    assert "loss curvature" in trigger.judge(reading(size * 1.5)).causes[0]


def test_a_steep_straight_descent_has_no_curvature():
    falling = [reading(100.0 - index + 0.001 * math.sin(index)) for index in range(60)]
    assert not fires(fed(LossCurvature(), falling), reading(40.0))


def test_nothing_fires_before_there_is_a_history():
    for trigger in (LossCurvature(), LossSpike(in_a_row=1), GradNormSpike()):
        short = fed(trigger, noisy(trigger.min_history - 1))
        assert not fires(short, reading(1e9, norms=(1e9, 1e9)))
        assert fires(fed(trigger, noisy(trigger.min_history + 2)), reading(1e9, norms=(1e9, 1e9)))


def test_the_plain_rule_is_the_mean_second_difference_of_ten_losses_from_the_fifth_on():
    zigzag = [reading(1.0 + 0.006 * (-1) ** index) for index in range(12)]  # second differences of 0.024
    assert [fires(fed(AbsoluteLossCurvature(), zigzag[:at]), zigzag[at]) for at in range(6)] == [False] * 4 + [True] * 2
    assert not fires(fed(AbsoluteLossCurvature(threshold=0.025), zigzag), reading(1.006))
    # ten losses have eight second differences: 0.16 over 8 is 0.02
    calm = fed(AbsoluteLossCurvature(), [reading()] * 12)
    assert not fires(calm, reading(1.159))
    assert fires(calm, reading(1.161))


def test_a_loss_spike_is_above_the_noise_and_above_the_least_rise():
    trigger = fed(LossSpike(in_a_row=1), noisy())
    assert not fires(trigger, reading(1.05))
    assert fires(trigger, reading(1.2))
    assert not fires(trigger, reading(0.1))
    assert trigger.judge(reading(1.2)).causes == ("loss 1.2, usually 0.9982",)


def test_a_loss_spike_has_to_last():
    trigger, seen = fed(LossSpike(in_a_row=3), noisy()), []
    for loss in (2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0):
        seen.append(max(trigger.judge(reading(loss)).levels))
        trigger = trigger.observe(reading(loss))
    assert [level >= 1.0 for level in seen] == [False] * 5 + [True] * 2
    assert min(seen[:2]) > 0.9  # not calm
    assert trigger.judge(reading(2.0)).causes == ("loss 2 for 5 steps, usually 0.9991",)


def test_a_loss_spike_does_not_become_what_is_usual_unless_it_lasts():
    before = fed(LossSpike(), noisy())
    during = fed(before, [reading(3.0)] * 20)
    assert during.losses == before.losses
    assert fires(during, reading(3.0))
    assert fed(during, [reading()]) == fed(before, [reading()])
    new = fed(during, noisy(10, level=3.0))  # of a window of 50, half
    assert not fires(new, reading(3.0))
    assert fires(fed(new, [reading(9.0)] * 4), reading(9.0))


def test_a_group_whose_results_its_low_format_does_not_hold_is_not_calm():
    verdict = NonFinite().judge(reading(shares=(0.0, 0.01), peaks=(1.0, 1e5)))
    assert verdict.level(0) == 0.0
    assert 0.9 < verdict.level(1) < 1.0


def test_a_gradient_norm_spike_names_its_own_group():
    trigger = fed(GradNormSpike(), noisy())
    verdict = trigger.judge(reading(norms=(1.0, 64.0)))
    assert verdict.level(0) < 0.5
    assert verdict.level(1) >= 1.0
    assert verdict.cause(1) == "gradient norm 64, usually 1"
    assert not fires(trigger, reading(norms=(3.0, 0.0)))
    assert not fires(trigger, reading(norms=(INF, NAN)))  # what the loss scale may have done


@pytest.mark.parametrize(
    ("fields", "group", "cause"),
    [
        ({"loss": NAN, "peaks": (1.0, INF), "norms": (NAN, NAN)}, 1, "its results are not finite"),
        ({"loss": NAN, "peaks": (INF, NAN)}, 0, "its results are not finite"),
        ({"norms": (INF, INF), "suspects": ("a.weight", "b.weight")}, 1, "gradient of b.weight is not finite"),
        ({"norms": (INF, 1.0)}, 0, "its gradients are not finite"),
        ({"loss": INF}, None, "loss is inf"),
        ({"is_skipped": True}, None, "step skipped: gradients not finite"),
        (
            {"peaks": (NAN, NAN), "raised": (True, False)},
            None,
            "its results are not finite, in the safer format too",
        ),
    ],
)
def test_lost_numbers_are_the_first_results_or_the_last_gradients(fields, group, cause):
    verdict = NonFinite().judge(reading(**fields))
    assert verdict.is_urgent
    assert [verdict.level(one) >= 1.0 for one in (0, 1)] == [group in (None, one) for one in (0, 1)]
    assert verdict.cause(group or 0) == cause


def test_gradients_lost_under_a_loss_scale_count_in_a_row():
    bad = reading(norms=(1.0, INF), is_skipped=True, is_scaled=True)
    trigger = NonFinite(in_a_row=3)
    seen = []
    for one in (bad, bad, reading(), bad, bad, bad):
        seen.append(fires(trigger, one))
        trigger = trigger.observe(one)
    assert seen == [False, False, False, False, False, True]
    assert fires(NonFinite(in_a_row=3), reading(NAN, is_scaled=True))  # no scale helps a forward pass


def test_a_share_beyond_the_format():
    assert OverflowShare().judge(reading()).levels == (0.0, 0.0)
    assert OverflowShare().judge(reading(shares=(0.0, 1e-6))).levels == (0.0, 1.0)
    verdict = OverflowShare(above=0.01).judge(reading(shares=(0.005, 0.02), peaks=(1.0, 7e4)))
    assert verdict.levels == (0.5, 2.0)
    assert verdict.cause(1) == "2.00% of its results beyond the format, the largest 7e+04"
    assert OverflowShare(format="e4m3").format == "fp8_e4m3"


def test_a_share_that_vanishes_in_fp8():
    assert UnderflowShare().judge(reading()).levels == (0.0,)  # nobody looked
    verdict = UnderflowShare().judge(reading(vanished=(0.05, 0.984)))
    assert verdict.levels == (0.5, pytest.approx(9.84))
    assert verdict.cause(1) == "98% of what a product takes is too small for fp8 beside the largest"
    assert not verdict.is_urgent
    assert UnderflowShare(format="e5m2").format == "fp8_e5m2"


@pytest.mark.parametrize("trigger", [LossCurvature(), AbsoluteLossCurvature(), LossSpike()])
def test_a_loss_that_is_not_finite_fires_and_is_not_remembered(trigger):
    trigger = fed(trigger, noisy(30))
    assert not fires(trigger, reading(NAN))  # the groups' results tell more
    assert fires(trigger, reading(NAN, peaks=()))
    assert trigger.observe(reading(NAN)) == trigger


def test_a_loss_that_nobody_gave_is_calm():
    for trigger in (LossCurvature(), AbsoluteLossCurvature(), LossSpike(), GradNormSpike(), OverflowShare()):
        assert not fires(fed(trigger, noisy()), reading(None, norms=(), shares=()))


def test_a_schedule_is_in_its_steps():
    schedule = Schedule(steps=[(0, 2), (5, None)], groups=["a"])
    assert [schedule.cause(step, "a") for step in range(6)] == [
        *["schedule, steps 0 to 1"] * 2,
        *[None] * 3,
        "schedule, steps 5 to the end",
    ]
    assert schedule.cause(0, "b") is None
    assert Schedule(steps=[(1, 2)]).cause(1, "anything")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LossCurvature(num_deviations=0), "LossCurvature: num_deviations is 0; it must be above 0"),
        (lambda: LossSpike(min_history=60, min_rise=-1), "min_history is 60; .* 1 to window .50.; min_rise is -1"),
        (
            lambda: AbsoluteLossCurvature(threshold=0, min_history=2),
            "min_history is 2; it must be at least 3; threshold is 0",
        ),
        (lambda: NonFinite(in_a_row=0), "NonFinite: in_a_row is 0; it must be at least 1"),
        (lambda: OverflowShare(above=1.0, headroom=0.5), "above is 1.0.*; headroom is 0.5"),
        (lambda: OverflowShare(format="fp61"), '"fp61" is not a format'),
        (
            lambda: UnderflowShare(above=0, format="fp16"),
            'above is 0; it must be above 0, and below 1; format: "fp16" is not a format with one scale a tensor',
        ),
        (lambda: LossSpike(window="x", in_a_row=1.5), "window is 'x'; it must be a whole number.*; in_a_row is 1.5"),
        (lambda: GradNormSpike(min_octaves=None), "min_octaves is None; it must be a number, at least 0"),
        (lambda: AbsoluteLossCurvature(threshold=INF), "threshold is inf; it must be above 0"),
        (
            lambda: OverflowShare(above="x", format=3),
            "above is 'x'; it must be a number.*; format: \"3\" is not a format",
        ),
        (
            lambda: Schedule(steps=(0, 5), groups="inp"),
            "steps has 0; give pairs .*; groups is 'inp'; give names of groups",
        ),
        (lambda: Schedule(steps=[(0, "x")]), "a later end, or None as the end, in whole numbers"),
        (lambda: Schedule(steps=None), "steps is None; give pairs"),
        (lambda: Schedule(steps=[]), "steps is empty; give pairs such as"),
        (lambda: Schedule(steps=[(5, 5), (-1, 2)]), r"steps has \(5, 5\).*; steps has \(-1, 2\)"),
        (lambda: get_trigger("loss-spke"), '"loss-spke" is not a trigger; did you mean "loss-spike"'),
        (lambda: get_trigger(3), 'a trigger is 3; give "loss-curvature"'),
    ],
)
def test_what_cannot_be_meant_is_refused_with_all_its_faults(make, words):
    with pytest.raises(UsageError, match=words):
        make()
