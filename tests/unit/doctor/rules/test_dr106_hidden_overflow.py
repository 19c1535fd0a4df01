from dataclasses import replace

import pytest

from ampwise.doctor.rules.dr106_hidden_overflow import RULE
from ampwise.records.finding import Severity
from ampwise.records.site import Phase, Site
from cases import GOOD, against_fp32, case, error, of, operand, origin, run

RSQRT = Site(phase=Phase.FORWARD, module="net.norm", op="aten.rsqrt")
SQUARE = origin("aten.pow", operand(484.0, 620.0), module="net.norm", vanished=RSQRT, scalars=(2.0,))


def test_both_operators_and_the_error_against_fp32_are_told():
    compared = run(losses=GOOD, against_fp32=against_fp32(error("net.norm", 1.0)))
    (finding,) = RULE.check(case(SQUARE, watched=compared))
    assert finding.message == (
        "The result of aten.pow in net.norm overflows fp16, and aten.rsqrt in net.norm makes finite numbers of the "
        "infinities: the loss stays finite, the result is wrong."
    )
    assert finding.evidence == (
        "step 3: inputs fp16 8x4 from 484 to 620, its fp16 result holds 12 inf; the module's output is 100% of its "
        "size away from fp32's"
    )
    assert finding.severity is Severity.ERROR
    assert 'module = "net.norm"' in (finding.plan_rule or "")


@pytest.mark.parametrize(("relative", "severity"), [(0.001, Severity.INFO), (0.4, Severity.ERROR)])
def test_the_exponential_of_a_hand_written_sigmoid_is_harmless_unless_fp32_differs(relative, severity):
    sigmoid = origin("aten.exp", operand(-30.0, 12.0), module="net.gate", vanished=RSQRT)
    compared = run(losses=GOOD, against_fp32=against_fp32(error("net.gate", relative)))
    (finding,) = RULE.check(case(sigmoid, watched=compared))
    assert finding.severity is severity


def test_what_shows_in_the_loss_is_left_to_others():
    assert list(RULE.check(case(origin("aten.pow", operand(484.0, 620.0))))) == []


def test_without_a_trace_it_is_silent():
    assert list(RULE.check(of(run()))) == []


def wide(op="aten.pow", vanished="aten.rsqrt"):
    return origin(
        op,
        operand(1.7e17, 7.4e23, dtype="fp32"),
        output=operand(dtype="fp32", num_infinite=249),
        module=None,
        phase=Phase.OTHER,
        vanished=Site(phase=Phase.OTHER, op=vanished),
    )


def test_one_in_fp32_is_named_and_no_precision_offered():
    (finding,) = RULE.check(case(wide(), watched=run("fp32", losses=GOOD)))
    assert finding.message == (
        "The result of aten.pow overflows fp32, and aten.rsqrt makes finite numbers of the infinities: the loss stays "
        "finite, the result is wrong."
    )
    assert finding.severity is Severity.WARNING
    assert finding.remedy.startswith("No precision holds it: bound the operand")
    assert finding.plan_rule is None


@pytest.mark.parametrize("one", [wide("aten.exp"), wide(vanished="aten.where"), wide(vanished="aten.nan_to_num")])
def test_one_in_fp32_that_the_script_expects_is_none(one):
    assert list(RULE.check(case(one, watched=run("fp32", losses=GOOD)))) == []


@pytest.mark.parametrize(("op", "has_code"), [("aten.pow", True), ("aten.mul", False)])
def test_the_remedy_in_code_is_that_of_a_square(op, has_code):
    (finding,) = RULE.check(case(replace(SQUARE, site=replace(SQUARE.site, op=op)), watched=run(losses=GOOD)))
    assert ("x.float().pow(2)" in finding.remedy) is has_code
