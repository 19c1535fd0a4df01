import pytest

from ampwise.doctor.rules.dr303_flipped_decisions import RULE
from cases import against_fp32, flip, of, run


def compared(*flips, name="bf16"):
    return of(run(name, against_fp32=against_fp32(flips=flips, name=name)))


def test_the_operator_and_its_share_are_told():
    (finding,) = RULE.check(compared(flip(32, 128)))
    assert finding.message == ("25% of the decisions of aten.topk in net.gate come out otherwise in bf16 than in fp32.")
    assert finding.evidence == "32 of 128 decisions on one batch, from the same weights"
    assert finding.site is not None
    assert finding.site.where == "moe.py:9"
    assert 'module = "net.gate"' in (finding.plan_rule or "")


@pytest.mark.parametrize(
    "one",
    [compared(flip(6, 128)), compared(flip(9, 19)), compared(flip(90, 128), name="fp32"), of(run("bf16"))],
    ids=["few", "hardly any", "nothing low", "not compared"],
)
def test_others_are_none(one):
    assert list(RULE.check(one)) == []


def test_how_few_flipped_is_told_where_something_decides():
    assert list(RULE.reassure(compared(flip(2, 128), flip(1, 64)))) == [
        "3 of 192 decisions (topk, argmax, sort) came out otherwise than in fp32"
    ]
    assert list(RULE.reassure(compared())) == list(RULE.reassure(of(run("bf16")))) == []
