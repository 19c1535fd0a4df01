import pytest

from ampwise.doctor.rules.dr109_fault_in_fp32_too import RULE
from ampwise.records.finding import Confidence
from ampwise.records.nonfinite import NonFiniteKind
from ampwise.records.run import Role
from ampwise.records.site import Phase
from cases import GOOD, LOST, bad_input, case, fp32, of, operand, origin, run, seen

EXP = origin(
    "aten.exp",
    operand(139.0, 260.0, dtype="fp32"),
    output=operand(dtype="fp32", num_infinite=15),
    module="net.sinkhorn",
)


def test_the_operator_that_fails_in_fp32_too_is_named():
    (finding,) = RULE.check(case(EXP, reruns=[fp32(losses=LOST, origins=[EXP])]))
    assert finding.message == (
        "The result of aten.exp in net.sinkhorn is not finite in fp32, and fp32's run shows the same: "
        "precision cannot fix it."
    )
    assert finding.evidence == (
        "step 3: inputs fp32 8x4 from 139 to 260, its fp32 result holds 15 inf; the loss in fp32 is not finite from "
        "step 3 on"
    )
    assert finding.remedy.startswith("Subtract the row's maximum before exp")
    assert finding.plan_rule is None


def test_where_nothing_ran_in_fp32_bf16_stands_for_its_range():
    own = origin("aten.exp", operand(90.0, 99.0, dtype="bf16"), output=operand(dtype="bf16", num_infinite=1))
    (finding,) = RULE.check(case(own))
    assert finding.confidence is Confidence.LIKELY
    assert "bf16 reaches as far as fp32" in finding.message


def test_a_run_in_fp32_is_its_own_witness():
    (finding,) = RULE.check(case(EXP, watched=run("fp32", losses=LOST)))
    assert finding.confidence is Confidence.CERTAIN


def test_a_loss_that_is_lost_unseen_is_told_from_both_runs():
    (finding,) = RULE.check(case(reruns=[fp32(losses=LOST)]))
    assert finding.message == "The loss is not finite in fp32 either: precision cannot fix it."
    assert finding.evidence == "in fp32 from step 3 on, in fp16 from step 3 on"


def test_a_loss_lost_now_and_then_is_told_though_skips_keep_the_weights_and_backward_fails_after_it():
    after = origin("aten.mm", phase=Phase.BACKWARD, kind=NonFiniteKind.NAN)
    losses = (2.0, float("inf"), 1.5, float("inf"))
    watched = run("fp16", losses=losses)
    (finding,) = RULE.check(case(after, watched=watched, reruns=[fp32(losses=LOST, origins=[after])]))
    assert finding.evidence == "in fp32 from step 3 on, in fp16 from step 1 on"


@pytest.mark.parametrize(
    "one",
    [
        case(origin("aten.mm", operand(-9.0, 9.0)), reruns=[fp32()]),
        case(EXP, reruns=[fp32()]),
        case(EXP, watched=run(losses=GOOD), reruns=[fp32()]),
        case(inputs=(bad_input(),), reruns=[fp32(losses=LOST)]),
        case(
            reruns=[fp32(losses=LOST, origins=[origin("aten.log", operand(0.0, 1.0, dtype="fp32"))])],
        ),
        of(run()),
    ],
    ids=["fp16 alone", "fp32 is well", "no fault", "bad input", "another rule's", "not looked at"],
)
def test_what_fp32_is_free_of_or_others_tell_is_none(one):
    assert list(RULE.check(one)) == []


def test_an_overflow_of_the_scripts_own_in_fp32_is_told_from_the_trace():
    power = origin(
        "aten.pow",
        operand(3.5e19, 4.6e23, dtype="fp32"),
        output=operand(dtype="fp32", num_infinite=64),
        module=None,
        phase=Phase.OTHER,
    )
    guard = origin("aten.mm", module="net.fc", phase=Phase.BACKWARD, kind=NonFiniteKind.NAN)
    watched = run("fp32", losses=LOST)
    traced = run("fp32", losses=LOST, role=Role.TRACED, nonfinite=seen(power))
    (finding,) = RULE.check(case(guard, watched=watched, reruns=[traced]))
    assert finding.message == (
        "The result of aten.pow is not finite in fp32, and no format that it could be computed in reaches further: "
        "precision cannot fix it."
    )
    assert finding.site is not None
    assert (finding.site.op, finding.site.where) == ("aten.pow", "train.py:7")
    assert finding.remedy.startswith("Bound what is squared")
