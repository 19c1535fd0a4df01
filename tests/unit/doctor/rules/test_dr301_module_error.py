import math

import pytest

from ampwise.doctor.rules.dr301_module_error import RULE
from ampwise.records.finding import Severity
from cases import GOOD, LOST, against_fp32, case, error, fp32, of, operand, origin, run


def compared(*modules, **fields):
    return run("bf16", against_fp32=against_fp32(*modules), **fields)


def test_the_module_in_which_the_error_arises_is_named_with_its_figures():
    record = compared(error("net.a", 0.004), error("net.b", 0.31, 0.004), error("net", 0.31, 0.0))
    (finding,) = RULE.check(of(record))
    assert finding.message == (
        "The output of net.b (Linear) in bf16 is 31% of its size away from fp32's, and the error arises there."
    )
    assert finding.evidence == ("relative error 31.00%, its input 0.40%, cosine 0.990, largest difference 0.2 of 1.5")
    assert finding.severity is Severity.WARNING
    assert 'module = "net.b"' in (finding.plan_rule or "")


def test_a_half_of_its_size_is_an_error_and_many_are_counted():
    record = compared(*(error(f"net.{number}", 0.8) for number in range(5)))
    found = list(RULE.check(of(record)))
    assert [one.severity for one in found] == [Severity.ERROR] * 3
    assert found[0].evidence.endswith("; 5 modules in all")


@pytest.mark.parametrize(
    "record",
    [
        compared(error("net.a", 0.06)),
        compared(error("net.a", 0.3, 0.2)),
        compared(error("net.a", math.inf, amax=math.inf)),
        compared(error("net.rotary", 1.4, rows=(1, 64))),
        run("fp32", against_fp32=against_fp32(error("net.a", 0.3), name="fp32")),
        run("bf16"),
    ],
    ids=["small", "given", "not finite in fp32", "rows fell together", "nothing low", "not compared"],
)
def test_others_are_none(record):
    assert list(RULE.check(of(record))) == []


def test_an_overflow_of_the_module_is_told_by_its_own_rule():
    watched = compared(error("net.fc", math.inf), losses=LOST)
    assert list(RULE.check(case(origin("aten.mm", operand(-9e3, 9e3)), watched=watched))) == []


def test_no_rule_helps_where_the_loss_is_lost_in_fp32_too():
    record = compared(error("net.fc", 0.9), losses=LOST)
    (finding,) = RULE.check(of(record, fp32(losses=LOST)))
    assert finding.plan_rule is None
    assert "precision cannot fix it" in finding.remedy


def test_the_worst_is_told():
    assert list(RULE.reassure(of(compared(error("net.a", 0.004), error("net.b", 0.0312, 0.01))))) == [
        "of 2 outputs of modules compared with fp32 on one batch, the worst is 3.12% off, of net.b"
    ]
    assert list(RULE.reassure(of(run("bf16", losses=GOOD)))) == []


def test_nothing_is_told_where_both_were_computed_alike_or_one_was_infinite():
    assert list(RULE.reassure(of(compared(error("net.a", 0.0), error("net.b", 0.0))))) == []
    assert list(RULE.reassure(of(compared(error("net.a", 0.004), error("net.b", float("inf")))))) == []


def test_an_infinity_is_the_traces_to_tell():
    lost = error("net.dropout", float("inf"), given=float("inf"))
    assert list(RULE.check(of(run("fp16", against_fp32=against_fp32(lost))))) == []
