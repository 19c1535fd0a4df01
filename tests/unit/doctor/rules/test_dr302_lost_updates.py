import math

import pytest

from ampwise.doctor.rules.dr302_lost_updates import RULE
from ampwise.records.numerics import TensorKind
from cases import lost, numerics, of, run, tensor


def updates(*losses, module="net.fc", **fields):
    return tensor(TensorKind.UPDATE, 1e-3, module=module, dtype="bf16", lost=losses, **fields)


def test_the_share_the_worst_weight_and_the_formats_digits_are_told():
    measured = numerics(updates(lost(60, 100), module="a"), updates(lost(100, 100), module="b"))
    (finding,) = RULE.check(of(run("bf16", numerics=measured)))
    assert finding.message == (
        "80% of the updates of weights in bf16 are lost: the weight is the same after the step. The most, 100%, of "
        "b.weight."
    )
    assert finding.evidence == (
        "160 of 200 updates looked at, in 2 weights; bf16 keeps 8 bits, so an update below 0.002 to 0.0039 of its "
        "weight is lost"
    )
    assert "autocast casts them" in finding.remedy


@pytest.mark.parametrize(
    "tensors",
    [
        [updates(lost(29, 100))],
        [updates(lost(10, 12))],
        [updates(lost(90, 100, name="fp32"))],
        [updates(lost(90, 100, is_own=False))],
        [updates(lost(90, 100), amax=(math.nan,))],
        [],
    ],
    ids=["few", "hardly any seen", "fp32", "supposed", "not finite", "no update"],
)
def test_others_are_none(tensors):
    assert list(RULE.check(of(run("bf16", numerics=numerics(*tensors))))) == []


def test_how_few_were_lost_is_told_of_half_precision_weights_alone():
    few = numerics(updates(lost(5, 100)))
    assert list(RULE.reassure(of(run("bf16", numerics=few)))) == [
        "5.0% of 100 updates of half-precision weights were lost"
    ]
    wide = numerics(updates(lost(5, 100, name="fp32")))
    assert list(RULE.reassure(of(run("bf16", numerics=wide)))) == []
    assert list(RULE.check(of(run("bf16")))) == list(RULE.reassure(of(run("bf16")))) == []
