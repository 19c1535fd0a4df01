import math

import pytest

from ampwise.doctor.rules import dr101_overflow_in_module as overflow
from ampwise.doctor.rules.dr108_weights_beyond_fp16 import RULE
from ampwise.records.numerics import TensorKind
from cases import LOST, case, numerics, of, operand, origin, run, tensor

LARGE = tensor(TensorKind.WEIGHT, 7e4, 0.1, dtype="fp32")
FINE = tensor(TensorKind.WEIGHT, 60_000.0, 0.1, dtype="fp32")


def test_the_weight_and_its_size_are_told():
    (finding,) = RULE.check(of(run(numerics=numerics(LARGE))))
    assert finding.message == "net.fc.weight holds 7e+04, and fp16 ends at 65504: it is infinite once it is cast."
    assert finding.evidence == "largest magnitude 70000, held in fp32"
    assert 'module = "net.fc"' in (finding.plan_rule or "")


def test_its_cast_is_no_overflow_of_the_module():
    cast = origin("aten._to_copy", operand(-1.0, 7e4, dtype="fp32"))
    watched = run(losses=LOST, numerics=numerics(LARGE))
    assert list(overflow.RULE.check(case(cast, watched=watched))) == []
    assert len(list(overflow.RULE.check(case(cast, watched=run(losses=LOST))))) == 1


@pytest.mark.parametrize(
    "record",
    [
        run(numerics=numerics(FINE)),
        run("bf16", numerics=numerics(LARGE)),
        run(numerics=numerics(tensor(TensorKind.ACTIVATION, 7e4, dtype="fp32"))),
        run(numerics=numerics(tensor(TensorKind.WEIGHT, 1.0, amax=(math.nan,)))),
        run(),
    ],
    ids=["within", "bf16", "activation", "nan", "not measured"],
)
def test_others_are_none(record):
    assert list(RULE.check(of(record))) == []


def test_the_largest_weight_is_told_where_fp16_is_computed_in():
    assert list(RULE.reassure(of(run(numerics=numerics(FINE))))) == [
        "every weight fits fp16: the largest is 6e+04 of 65504"
    ]
    assert list(RULE.reassure(of(run("bf16", numerics=numerics(FINE))))) == []
    assert list(RULE.reassure(of(run()))) == []


def test_one_that_a_plan_kept_from_being_cast_is_none():
    cast = origin("aten._to_copy", operand(-1.0, 7e4, dtype="fp32"))
    watched = run(numerics=numerics(LARGE))
    assert list(RULE.check(case(watched=watched, traced_steps=(0,)))) == []
    assert len(list(RULE.check(case(cast, watched=watched, traced_steps=(0,))))) == 1
