from ampwise.doctor.rules.dr105_nan_in_optimizer import RULE
from ampwise.records.finding import Confidence
from ampwise.records.nonfinite import FoundBy, NonFiniteKind
from ampwise.records.site import Phase
from cases import case, of, operand, origin, run

ADAM = origin(
    "aten.addcdiv_",
    operand(0.0, 0.1746),
    operand(0.0, 1.745),
    output=operand(0.1, 0.4, num_nan=2),
    phase=Phase.OPTIMIZER,
    kind=NonFiniteKind.NAN,
    parameter="net.fc.weight",
)


def test_adams_eps_is_named_with_what_fp16_makes_of_it():
    (finding,) = RULE.check(case(ADAM))
    assert finding.message == (
        "The optimizer divides by zero at aten.addcdiv_ in net.fc, for net.fc.weight: in fp16 an epsilon below 3e-08, "
        "such as Adam's 1e-8, is zero."
    )
    assert "fp16 8x4 from 0 to 1.745, its fp16 result holds 2 NaN" in finding.evidence
    assert "eps=1e-4" in finding.remedy
    assert finding.plan_rule is None


def test_another_fault_of_an_optimizer_is_not_blamed_on_eps():
    wide = origin(
        "aten.addcdiv_",
        operand(0.0, 1.0, dtype="fp32"),
        operand(0.5, 1.0, dtype="fp32"),
        output=operand(dtype="fp32", num_infinite=1),
        phase=Phase.OPTIMIZER,
        parameter="net.fc.weight",
    )
    (finding,) = RULE.check(case(wide))
    assert finding.message == "The optimizer's step makes inf of net.fc.weight, whose gradient was finite."
    assert finding.remedy.startswith("Lower the learning rate")


def test_what_only_the_guard_saw_counts_if_nothing_came_before():
    guard = origin(None, phase=Phase.OPTIMIZER, kind=NonFiniteKind.NAN, found_by=FoundBy.GUARD, parameter="net.fc.bias")
    (finding,) = RULE.check(case(guard))
    assert "net.fc.bias" in finding.message
    assert finding.confidence is Confidence.LIKELY
    assert list(RULE.check(case(origin("aten.mm"), guard))) == []


def test_it_is_silent_on_other_phases_and_without_a_trace():
    assert list(RULE.check(case(origin("aten.addcdiv_", operand(0.0, 1.0))))) == []
    assert list(RULE.check(of(run()))) == []
