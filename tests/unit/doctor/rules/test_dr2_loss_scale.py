"""The rules on the loss scale share their figures, so they are told apart in one place."""

import math
from dataclasses import replace

import pytest

from ampwise.doctor.rules import (
    dr201_not_the_scale,
    dr202_scale_starts_too_high,
    dr203_scale_collapse,
    dr204_scale_oscillation,
)
from ampwise.records.finding import Confidence, Severity
from ampwise.records.run import Role
from ampwise.records.site import Phase
from cases import GOOD, case, fp32, of, operand, origin, run

RULES = (dr201_not_the_scale, dr202_scale_starts_too_high, dr203_scale_collapse, dr204_scale_oscillation)
NAN = [math.nan] * 20


def found(one):
    return [finding for module in RULES for finding in module.RULE.check(one)]


def test_a_forward_pass_that_is_not_finite_is_not_the_scales_fault():
    mm = origin("aten.mm", operand(-9e3, 9e3))
    watched = run(losses=NAN, scale=65536.0, skipped=range(20))
    unscaled = run(losses=NAN, role=Role.UNSCALED)
    (finding,) = found(case(mm, watched=watched, reruns=[unscaled]))
    assert finding.rule == "DR201"
    assert finding.message == (
        "Steps are skipped because the forward pass is not finite: aten.mm in net.fc makes it so; no loss scale helps."
    )
    assert finding.evidence == (
        "the scale went from 65536 to 0.125 in 20 steps, of which 20 were skipped, 20 in a row; without the loss scale "
        "it stays; without a scale the loss is not finite from step 0 on"
    )
    assert finding.confidence is Confidence.CERTAIN


def test_a_scale_that_settles_is_worth_an_init_scale():
    watched = run(scale=65536.0, skipped=range(5))
    (finding,) = found(of(watched, run(role=Role.UNSCALED)))
    assert (finding.rule, finding.severity) == ("DR202", Severity.INFO)
    assert finding.message == (
        "Steps are skipped because a loss scale of 65536 takes the gradients beyond fp16; 2048 fits."
    )
    assert finding.remedy == "Start lower: `GradScaler(init_scale=2048)`."
    assert "5 were skipped, 5 in a row; without the loss scale it is gone" in finding.evidence


def test_a_scale_that_has_not_settled_is_a_warning():
    (finding,) = found(of(run(scale=2.0**24, skipped=range(20))))
    assert (finding.rule, finding.severity) == ("DR202", Severity.WARNING)
    assert "none had fitted when the run ended" in finding.message


def test_a_scale_below_one_collapses():
    by_rule = {finding.rule: finding for finding in found(of(run(scale=16.0, skipped=range(20))))}
    assert by_rule["DR203"].message == ("The loss scale fell to 3.05176e-05, below 1, while every loss was finite.")
    assert by_rule["DR203"].severity is Severity.ERROR
    assert by_rule.keys() == {"DR203"}


def test_a_collapse_is_certain_where_fp32_did_without_it():
    watched = run(scale=16.0, skipped=range(20))
    for rerun, confidence in ((fp32(), Confidence.CERTAIN), (fp32(losses=NAN), Confidence.LIKELY)):
        (finding,) = dr203_scale_collapse.RULE.check(of(watched, rerun))
        assert finding.confidence is confidence


def test_gradients_that_unscaling_makes_infinite_are_no_fault_of_the_forward_pass():
    unscale = origin("aten._amp_foreach_non_finite_check_and_unscale_", operand(-9.0, 9.0, dtype="fp32"), module=None)
    watched = run(scale=16.0, skipped=range(20))
    assert "DR203" in {finding.rule for finding in found(case(unscale, watched=watched))}


def test_skips_at_every_scale_are_a_collapse():
    endless = run(losses=GOOD * 3, scale=2.0**40, skipped=range(45))
    assert "no scale helps" in next(one for one in found(of(endless)) if one.rule == "DR203").message


def test_a_scale_that_saws_oscillates():
    steps = run(losses=GOOD * 2, scale=256.0).steps
    sawing = tuple(
        replace(step, scale=256.0 if step.index % 2 else 128.0, skipped=bool(step.index % 2)) for step in steps
    )
    (finding,) = found(of(replace(run(), steps=sawing)))
    assert finding.rule == "DR204"
    assert "turned 38 times between 128 and 256" in finding.message
    assert "steps 0 to 39" in finding.evidence


@pytest.mark.parametrize(
    "record",
    [run(scale=65536.0, skipped=(0, 1, 7)), run(scale=65536.0), run(), run(scale=0.5), run("bf16")],
    ids=["settling", "still", "no scale", "low on purpose", "bf16"],
)
def test_a_healthy_scale_is_left_alone(record):
    assert found(of(record)) == []


def test_how_many_steps_it_cost_is_told():
    (text,) = dr202_scale_starts_too_high.RULE.reassure(of(run(scale=65536.0, skipped=(0, 7))))
    assert text == "the loss scale cost 2 of 20 steps and is 16384"
    assert list(dr202_scale_starts_too_high.RULE.reassure(of(run()))) == []


@pytest.mark.parametrize("scale", [16.0, 65536.0], ids=["collapsing", "too high"])
def test_a_division_by_zero_in_backward_is_no_scales_fault(scale):
    zero = operand(0.0, 3.5, dtype="fp32")
    root = origin("aten.div", operand(-1.0, 1.0), zero, phase=Phase.BACKWARD, forward_op="aten.sqrt")
    watched = run(scale=scale, skipped=range(20))
    assert found(case(root, watched=watched)) == []


def test_a_collapse_in_fp32_too_is_not_sent_to_bf16():
    lost = fp32(losses=NAN)
    by_rule = {finding.rule: finding for finding in found(of(run(scale=16.0, skipped=range(20)), lost))}
    assert by_rule["DR203"].remedy.startswith("The same run in fp32 fails too")
