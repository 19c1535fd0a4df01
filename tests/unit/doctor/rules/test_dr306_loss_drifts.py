import math
from dataclasses import replace

import pytest

from ampwise.doctor.rules.dr306_loss_drifts import RULE
from cases import GOOD, fp32, of, run

STUCK = [2.9 - 0.001 * step for step in range(20)]
NOISY = [2.0 + (0.9 if step % 2 else -0.9) for step in range(20)]


def test_both_ends_and_the_noise_are_told():
    (finding,) = RULE.check(of(run("bf16", losses=STUCK), fp32()))
    assert finding.message == "The loss ends at 2.883 in bf16 and at 1.83 in fp32, from the same seeds."
    assert finding.evidence == "means of the last quarter of 20 steps; fp32's loss moves by 0.014 within it"
    assert finding.confidence.value == "possible"


@pytest.mark.parametrize(
    "one",
    [
        of(run("bf16", losses=[loss * 1.1 for loss in GOOD]), fp32()),
        of(run("bf16", losses=STUCK), fp32(losses=NOISY)),
        of(run("bf16", losses=STUCK[:7]), fp32()),
        of(run("bf16", losses=[math.nan] * 20), fp32()),
        of(run("bf16", losses=STUCK), fp32(left_alone="SGD given bfloat16 parameters at train.py:3")),
        of(run("fp32", losses=STUCK)),
        of(run("bf16", losses=STUCK)),
    ],
    ids=["a tenth", "noise", "short", "not finite", "fp32 in name only", "fp32 itself", "alone"],
)
def test_others_are_none(one):
    assert list(RULE.check(one)) == []


def test_how_close_they_are_is_told():
    assert list(RULE.reassure(of(run("bf16", losses=[loss + 0.01 for loss in GOOD]), fp32()))) == [
        "the loss ends at 1.84, and at 1.83 in fp32"
    ]
    assert list(RULE.reassure(of(run("bf16")))) == []


def test_ends_are_none_where_another_optimizers_loss_was_lost():
    watched = run("bf16")
    lost = replace(watched.steps[-1], index=len(watched.steps), optimizer=1, loss=math.nan)
    assert list(RULE.reassure(of(replace(watched, steps=(*watched.steps, lost)), fp32()))) == []
