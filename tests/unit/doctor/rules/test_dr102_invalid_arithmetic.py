import pytest

from ampwise.doctor.rules.dr102_invalid_arithmetic import RULE
from ampwise.plan.file import parse_plan
from ampwise.records.nonfinite import NonFiniteKind
from ampwise.records.run import Role
from ampwise.records.site import Phase
from cases import GOOD, LOST, case, fp32, of, operand, origin, run, seen

LOG1P = origin("aten.log1p", operand(-1.0, -0.5, dtype="bf16"), output=operand(dtype="bf16", num_infinite=4))


def test_the_saturated_probability_is_named_with_its_figures():
    (finding,) = RULE.check(case(LOG1P))
    assert finding.message == (
        "aten.log1p in net.fc takes the logarithm of 1 + x where x is -1. "
        "In bf16 every probability above 0.998047 is 1."
    )
    assert finding.evidence == "step 3: inputs bf16 8x4 from -1 to -0.5, its bf16 result holds 4 inf"
    assert finding.remedy.startswith("Take logsigmoid(-x) of the logits for log1p(-sigmoid(x))")
    assert finding.remedy.endswith("; or compute the module in fp32.")
    plan = parse_plan(f'version = 1\ndefault = "bf16"\n{finding.plan_rule}')
    assert plan.rules[0].module == "net.fc"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (origin("aten.log", operand(0.0, 1.0)), "takes the logarithm of a number that is not above 0"),
        (origin("aten.rsqrt", operand(0.0, 1.0)), "divides by zero. In fp16 an epsilon below 3e-08 is zero"),
        (origin("aten.div", operand(1.0, 2.0), operand(0.0, 2.0)), "divides by zero"),
        (
            origin("aten.div", operand(0.0, 2.0), operand(0.0, 2.0), kind=NonFiniteKind.NAN),
            "divides zero by zero",
        ),
        (origin("aten.sqrt", operand(-1e-3, 2.0), kind=NonFiniteKind.NAN), "takes the root of a negative number"),
        (origin("aten.pow", operand(0.0, 2.0), scalars=(-1.0,)), "divides by zero"),
        (
            origin("aten.mean", operand(shape=(0, 1)), kind=NonFiniteKind.NAN),
            "is given a tensor without elements, and a mean of nothing is NaN.",
        ),
        (
            origin("aten.nll_loss_forward", operand(-2.0, -0.1), operand(shape=(8,)), kind=NonFiniteKind.NAN),
            "divides by the number of targets that count, of which there are none.",
        ),
        (origin("aten.acos", operand(-1.0, 1.01), kind=NonFiniteKind.NAN), "leaves the range that it is defined on"),
    ],
    ids=lambda value: value.site.op if hasattr(value, "site") else None,
)
def test_each_operation_says_what_it_was_given(one, words):
    (finding,) = RULE.check(case(one))
    assert words in finding.message


def test_what_is_done_about_nothing_is_no_precision():
    for op, given, words in (
        ("aten.mean", operand(shape=(0, 1)), "Leave empty batches out"),
        ("aten.nll_loss_forward", operand(-2.0, -0.1), "every target is `ignore_index`"),
    ):
        watched = case(origin(op, given, kind=NonFiniteKind.NAN), reruns=(fp32(losses=LOST),))
        (finding,) = RULE.check(watched)
        assert words in finding.remedy
        assert "precision cannot fix it" in finding.remedy
        assert finding.plan_rule is None


@pytest.mark.parametrize(
    "one",
    [
        origin("aten.div", operand(1.0, 6e4), operand(1e-4, 1.0)),
        origin("aten.pow", operand(1.0, 700.0), scalars=(2.0,)),
        origin("aten.mm", operand(-8.0, 8.0), operand(-1.0, 1.0)),
        origin("aten.log", operand(0.0, 1.0), phase=Phase.BACKWARD),
        origin("aten.log"),
        origin("aten.mean", operand(shape=(0, 1)), phase=Phase.BACKWARD, kind=NonFiniteKind.NAN),
        origin("aten.nll_loss_forward", operand(-2.0, -0.1)),
    ],
    ids=["large quotient", "large square", "product", "backward", "no inputs", "backward of nothing", "large loss"],
)
def test_what_only_overflows_is_left_to_others(one):
    assert list(RULE.check(case(one))) == []


def test_fp32_fails_too_and_so_no_rule_is_offered():
    bad = fp32(losses=LOST, origins=[LOG1P])
    (finding,) = RULE.check(case(LOG1P, reruns=[bad]))
    assert finding.plan_rule is None
    assert "The same run in fp32 fails too at aten.log1p in net.fc, so precision cannot fix it." in finding.remedy
    assert "in fp32." not in finding.remedy.split("fix it.")[1]


def test_without_a_trace_it_is_silent():
    assert list(RULE.check(of(run()))) == []


def test_a_trace_that_saw_nothing_leaves_the_word_to_the_watched_run():
    traced = run(role=Role.TRACED, nonfinite=seen())
    assert len(list(RULE.check(case(LOG1P, reruns=[traced])))) == 1


LONELY = origin(
    "aten.pow", operand(0.0, 9.0, dtype="fp32"), output=operand(dtype="fp32", num_infinite=1), scalars=(-0.5,)
)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_infinity_that_nothing_shows_is_meant(precision):
    one = case(LONELY, watched=run(precision, losses=GOOD))
    assert list(RULE.check(one)) == []
    (reason,) = RULE.reassure(one)
    assert (
        reason == "no loss, gradient or weight shows the infinities that aten.pow (train.py:7) gives, in fp32 as well"
    )


@pytest.mark.parametrize("lost", ["loss_steps", "weight_steps", "gradient_steps"])
def test_one_that_shows_is_none_of_those(lost):
    one = case(LONELY, watched=run("fp32", losses=GOOD), **{lost: (3,)})
    assert len(list(RULE.check(one))) == 1
    assert list(RULE.reassure(one)) == []


def test_the_gradient_of_a_skipped_step_shows_nothing():
    watched = run("fp16", losses=GOOD, scale=65536.0, skipped=(0,))
    assert list(RULE.check(case(LONELY, watched=watched, gradient_steps=(0,)))) == []


def test_in_half_precision_it_is_meant_where_fp32_makes_it_too():
    watched = run("bf16", losses=GOOD)
    assert len(list(RULE.check(case(LOG1P, watched=watched)))) == 1
    assert len(list(RULE.check(case(LOG1P, watched=watched, reruns=[fp32()])))) == 1
    assert list(RULE.check(case(LOG1P, watched=watched, reruns=[fp32(origins=[LOG1P])]))) == []


def test_what_a_healthy_run_in_fp32_makes_too_is_meant_whatever_the_low_format_loses_elsewhere():
    product = origin("aten.mm", operand(-9e3, 9e3), module="net.wo")
    one = case(LONELY, product, reruns=[fp32(origins=[LONELY])])
    assert list(RULE.check(one)) == list(RULE.reassure(one)) == []
    assert len(list(RULE.check(case(LONELY, product, reruns=[fp32(origins=[LONELY], losses=LOST)])))) == 1
