import pytest

from ampwise.doctor.rules import dr101_overflow_in_module as overflow
from ampwise.doctor.rules.dr103_mask_too_large import RULE
from ampwise.records.finding import Severity
from ampwise.records.nonfinite import NonFiniteKind
from cases import GOOD, case, fp32, of, operand, origin, run

SCORES = operand(-1221.0, -1153.0, shape=(3, 3))
MASK = operand(-65504.0, 0.0, shape=(3, 3))
LOWEST = operand(-1219.0, -1188.0, shape=(3, 3), num_infinite=7, num_negative_infinite=7)
ADDED = origin("aten.add", SCORES, MASK, output=LOWEST, module="attn")
ROW = operand(-2.0, 1.0, dtype="fp32", num_infinite=4, num_negative_infinite=4)
EMPTY = origin("aten._softmax", ROW, output=operand(dtype="fp32", num_nan=4), kind=NonFiniteKind.NAN)


def test_the_mask_its_place_and_the_scores_are_told():
    (finding,) = RULE.check(case(ADDED))
    assert finding.message == (
        "A mask's constant takes 7 scores of aten.add in attn below the lowest number of fp16, which ends at -65504."
    )
    assert "fp16 3x3 from -1221 to -1153; fp16 3x3 from -6.55e+04 to 0" in finding.evidence
    assert "torch.finfo(scores.dtype).min / 2" in finding.remedy
    assert 'module = "attn"' in (finding.plan_rule or "")


def test_a_mask_is_no_overflow_of_the_module():
    assert list(overflow.RULE.check(case(ADDED))) == []


def test_a_constant_beyond_the_format_is_a_mask_too():
    scaled = origin("aten.mul", operand(0.0, 1.0), output=LOWEST, scalars=(-1e9,))
    assert len(list(RULE.check(case(scaled)))) == 1


def test_a_row_that_is_masked_whole_is_no_matter_of_precision():
    (finding,) = RULE.check(case(EMPTY))
    assert finding.message == (
        "A mask leaves nothing of a row that aten._softmax in net.fc is taken over: its result is NaN."
    )
    assert finding.plan_rule is None
    assert "torch.nan_to_num" in finding.remedy


@pytest.mark.parametrize(
    "one",
    [
        origin("aten.add", SCORES, MASK, output=operand(num_infinite=7, num_negative_infinite=2)),
        origin("aten.add", SCORES, operand(-4e4, 0.0), output=LOWEST),
        origin("aten.mm", SCORES, MASK, output=LOWEST),
    ],
    ids=["both signs", "an ordinary number", "a product"],
)
def test_other_sums_are_overflows(one):
    assert list(RULE.check(case(one))) == []


def test_without_a_trace_it_is_silent():
    assert list(RULE.check(of(run()))) == []


def test_scores_of_minus_infinity_are_a_remark_where_each_row_kept_a_key():
    (finding,) = RULE.check(case(ADDED, watched=run(losses=GOOD)))
    assert finding.severity is Severity.INFO


def test_an_empty_row_that_nothing_shows_is_none():
    assert list(RULE.check(case(EMPTY, watched=run("fp32", losses=GOOD), reruns=[fp32(origins=[EMPTY])]))) == []
