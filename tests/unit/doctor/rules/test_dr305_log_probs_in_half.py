import pytest

from ampwise.doctor.rules.dr305_log_probs_in_half import RULE
from ampwise.records.casts import CastRecord, OperatorCalls
from ampwise.records.site import Phase, Site
from cases import of, run


def calls(*results, op="aten._log_softmax", phase=Phase.OTHER, precision="bf16"):
    found = [
        OperatorCalls(site=Site(phase=phase, op=op), dtype=result, result=result, count=2, ms=None)
        for result in results
    ]
    record = CastRecord(
        steps=(3, 4), calls=tuple(found), casts=(), num_operators=9, operator_bytes=0, operator_ms=None, cost_ms=0.0
    )
    return of(run(precision, casts=record))


def test_the_format_and_its_step_are_told():
    (finding,) = RULE.check(calls("bf16", "fp32"))
    assert finding.message == "aten._log_softmax of the loss gives log-probabilities in bf16."
    assert finding.evidence == "2 calls in the steps watched; at -10, two neighbouring bf16 numbers differ by 0.0625"
    assert "cross_entropy(logits.float(), y)" in finding.remedy


@pytest.mark.parametrize(
    "one",
    [calls("fp32"), calls("bf16", op="aten._softmax"), calls("bf16", phase=Phase.BACKWARD), of(run("bf16"))],
    ids=["fp32", "softmax", "backward", "not watched"],
)
def test_others_are_none(one):
    assert list(RULE.check(one)) == []


def test_that_they_are_fp32s_is_told_of_a_low_run():
    assert list(RULE.reassure(calls("fp32"))) == ["log-probabilities are computed in fp32, 2 calls looked at"]
    assert list(RULE.reassure(calls("fp32", precision="fp32"))) == list(RULE.reassure(of(run("bf16")))) == []
