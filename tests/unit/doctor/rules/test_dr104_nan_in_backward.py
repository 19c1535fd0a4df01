from dataclasses import replace

import pytest

from ampwise.doctor.rules.dr104_nan_in_backward import RULE
from ampwise.records.nonfinite import FoundBy, NonFiniteKind
from ampwise.records.run import Role
from ampwise.records.site import Phase
from ampwise.records.usage import UsageRecord
from cases import GOOD, LOST, case, of, operand, origin, run, seen

ZERO = operand(0.0, 0.0, dtype="fp32")
ROOT = origin(
    "aten.div",
    operand(0.1, 0.1, dtype="fp32"),
    ZERO,
    output=operand(dtype="fp32", num_infinite=8),
    phase=Phase.BACKWARD,
    forward_op="aten.sqrt",
)


def test_the_forward_operator_and_what_to_write_are_told():
    (finding,) = RULE.check(case(ROOT))
    assert finding.message == (
        "aten.div in net.fc makes a gradient infinite, in the gradient of aten.sqrt, of finite numbers."
    )
    assert finding.remedy.startswith("The root's slope at 0 is infinite: write (x + eps).sqrt()")
    assert "fp32 8x4 from 0 to 0" in finding.evidence
    assert finding.site is not None
    assert finding.site.where == "train.py:7"


def test_a_fault_of_the_forward_pass_says_it_all():
    forward = origin("aten.sqrt", operand(-1.0, 1.0), kind=NonFiniteKind.NAN)
    assert list(RULE.check(case(forward, ROOT))) == []


def test_a_gradient_beyond_fp16_without_a_scale_is_told():
    mm = origin("aten.mm", operand(-9e3, 9e3), phase=Phase.BACKWARD, forward_op="aten.mm")
    (finding,) = RULE.check(case(mm))
    assert finding.remedy.startswith("The gradient leaves fp16")
    assert finding.plan_rule is not None


@pytest.mark.parametrize("losses", [GOOD, [float("nan")] * 20], ids=["settled", "lost"])
def test_a_scaled_gradient_beyond_fp16_is_what_the_scale_is_for(losses):
    mm = origin("aten.mm", operand(-9e3, 9e3), phase=Phase.BACKWARD, forward_op="aten.mm")
    watched = run(losses=losses, scale=65536.0, skipped=(0, 1))
    assert list(RULE.check(case(mm, watched=watched))) == []


def test_nan_that_stays_under_a_scale_is_told():
    watched = run(losses=GOOD, scale=65536.0, skipped=range(8))
    output = operand(dtype="fp32", num_nan=8)
    nan = origin("aten.div", ZERO, ZERO, output=output, phase=Phase.BACKWARD, kind=NonFiniteKind.NAN)
    (finding,) = RULE.check(case(nan, watched=watched))
    assert "makes a gradient NaN" in finding.message


def test_what_only_the_guard_saw_is_likely_and_told_once():
    guard = origin(None, output=None, phase=Phase.BACKWARD, found_by=FoundBy.GUARD, parameter="net.fc.weight")
    (finding,) = RULE.check(case(guard, watched=run()))
    assert finding.message.startswith("The gradient of net.fc.weight is not finite")
    assert finding.confidence.value == "likely"
    assert len(list(RULE.check(case(ROOT, guard)))) == 1
    assert list(RULE.check(case(guard))) == []  # its step's loss was lost before


def test_without_a_trace_it_is_silent():
    assert list(RULE.check(of(run()))) == []


def wide(op, *, forward_op, **fields):
    given = {"output": operand(dtype="fp32", num_infinite=8), "phase": Phase.BACKWARD, **fields}
    return origin(op, operand(-2e34, 2e33, dtype="fp32"), forward_op=forward_op, **given)


def test_what_was_too_large_for_the_forward_pass_is_too_large_for_the_backward_pass():
    forward = origin("aten.pow", operand(3e19, 4e23, dtype="fp32"), module=None, phase=Phase.OTHER)
    product = wide("aten.mul", forward_op="aten.mul")
    watched = run("fp32", losses=LOST)
    assert list(RULE.check(case(forward, product, watched=watched))) == []
    assert len(list(RULE.check(case(forward, ROOT, watched=watched)))) == 1, "a slope's fault is its own"
    assert len(list(RULE.check(case(forward, replace(product, step=2), watched=watched)))) == 1, "it came before"


def test_a_gradient_that_fails_once_the_forward_is_put_right_is_told():
    forward = origin("aten.mm", operand(-9e3, 9e3))
    rescued = run(role=Role.RESCUED, nonfinite=seen(wide("aten.mul", forward_op="aten.mul", module="net.b")))
    (finding,) = RULE.check(case(forward, reruns=[rescued]))
    assert finding.site is not None
    assert finding.site.module == "net.b"


def test_a_product_beyond_fp32_has_no_slope_to_be_kept_from():
    (finding,) = RULE.check(case(wide("aten.mul", forward_op="aten.mul"), watched=run("fp32", losses=LOST)))
    assert finding.remedy == (
        "The run is in fp32 already, so precision cannot fix it. The gradient leaves fp32's range: make the loss "
        "smaller, or what it is computed of."
    )
    assert finding.plan_rule is None


def test_a_scale_that_no_scaler_took_away_again_is_a_scale_too():
    mm = origin("aten.mm", operand(-9e3, 9e3), phase=Phase.BACKWARD, forward_op="aten.mm")
    watched = run(losses=LOST, usage=UsageRecord(num_steps=20, num_scaled=20))
    assert list(RULE.check(case(mm, watched=watched))) == []


def test_a_division_by_zero_is_none_of_the_scales_doing():
    watched = run(losses=GOOD, scale=65536.0, skipped=range(20))
    (finding,) = RULE.check(case(ROOT, watched=watched))
    assert finding.remedy.startswith("The root's slope at 0 is infinite")


def test_no_rule_is_offered_that_was_seen_not_to_help():
    cast = origin("aten._to_copy", operand(-8e10, 8e10, dtype="fp32"), phase=Phase.BACKWARD, forward_op="aten.div")
    rescued = run(losses=LOST, role=Role.RESCUED, fp32_modules=("net.fc",), nonfinite=seen(cast))
    (finding,) = RULE.check(case(cast, reruns=[rescued]))
    assert finding.plan_rule is None
    assert "with net.fc in fp32 it stays: then aten._to_copy in net.fc fails, in backward" in finding.evidence
    helped = replace(rescued, steps=run().steps, nonfinite=seen())
    (finding,) = RULE.check(case(cast, reruns=[helped]))
    assert 'module = "net.fc"' in (finding.plan_rule or "")


def test_weights_that_fp32_spoils_behind_a_finite_loss_are_a_fault_of_fp32s_too():
    spoilt = run("fp32", role=Role.IN_FP32, nonfinite=seen(ROOT, weight_steps=(0, 1)))
    (finding,) = RULE.check(case(ROOT, reruns=[spoilt]))
    assert "in fp32 it stays" in finding.evidence
    assert finding.remedy.startswith("The same run in fp32 fails too at aten.div in net.fc, so precision cannot fix it")
    assert finding.plan_rule is None
