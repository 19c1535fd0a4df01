from dataclasses import replace

import pytest

from ampwise.doctor.rules.dr304_rows_fell_together import RULE
from cases import against_fp32, error, of, origin, run, seen


def compared(*modules):
    return of(run("bf16", against_fp32=against_fp32(*modules)))


def test_the_first_module_is_named_with_its_rows():
    (finding,) = RULE.check(compared(error("net.rotary", 1.41, rows=(1, 64)), error("net.attn", 1.2, rows=(1, 64))))
    assert finding.message == "net.rotary (Linear) gives 64 different rows in fp32 and 1 in bf16."
    assert finding.evidence == ("of 64 rows on one batch; relative error 1.41; bf16 holds every whole number up to 256")
    assert "Keep positions and angles in fp32" in finding.remedy
    assert 'module = "net.rotary"' in (finding.plan_rule or "")


def test_a_result_that_was_widened_afterwards_lost_its_rows_in_the_runs_format():
    widened = replace(error("net.norm", 1.0, rows=(1, 32)), dtype="fp32")
    (finding,) = RULE.check(compared(widened))
    assert finding.message.endswith("32 different rows in fp32 and 1 in bf16.")
    assert "fall together in bf16" in (finding.plan_rule or "")


@pytest.mark.parametrize(
    "one",
    [
        compared(error("net.fc", 1.4, rows=(40, 64))),
        compared(error("net.fc", 0.004, rows=(8, 64))),
        compared(error("net.fc", 1.4, rows=(1, 3))),
        compared(error("net.fc", 1.4, rows=(None, None))),
        compared(error("net.fc", 1.0, 0.9, rows=(1, 64))),
        compared(error("net.fc", 0.9), error("net", 0.9, rows=(1, 64))),
        of(
            run(
                "bf16",
                against_fp32=against_fp32(error("net.fc", 1.4, rows=(1, 64))),
                nonfinite=seen(origin("aten.mul")),
            )
        ),
        of(run("bf16")),
    ],
    ids=["most differ", "rounded alike", "too few", "not counted", "given", "within", "overflowed", "not compared"],
)
def test_others_are_none(one):
    assert list(RULE.check(one)) == []
