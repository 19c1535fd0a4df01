"""The rules on usage, on records written by hand."""

from dataclasses import replace

import pytest

import recordings
from ampwise.doctor.case import Case
from ampwise.doctor.rule import all_rules
from ampwise.records.finding import Severity
from ampwise.records.run import Role
from ampwise.records.site import Phase, Site
from ampwise.records.usage import Misuse, MisusePlace, SavedState, ScalerMade, UsageRecord

RULES = {rule.info.id: rule for rule in all_rules() if rule.info.id.startswith("DR7")}
SITE = Site(phase=Phase.OPTIMIZER, file="train.py", line=9)
RIGHT = UsageRecord(num_steps=20, num_backwards=20, num_scaled=20, autocast="fp16")
KINDS = {
    "DR701": Misuse.BACKWARD_UNDER_AUTOCAST,
    "DR702": Misuse.STEP_UNDER_AUTOCAST,
    "DR704": Misuse.CLIPPED_SCALED,
    "DR705": Misuse.SCALED_BF16,
    "DR707": Misuse.STEPPED_SCALED,
}


def case(usage):
    run = recordings.run("fp16", "fp16", role=Role.WATCHED, left_alone="GradScaler made at train.py:3", usage=usage)
    return Case(recordings.recording([run], []))


def found(usage):
    return [finding for rule in RULES.values() for finding in rule.check(case(usage))]


@pytest.mark.parametrize(("rule", "kind"), KINDS.items())
def test_each_misuse_is_one_rules(rule, kind):
    place = MisusePlace(kind=kind, site=SITE, count=19, what="AdamW", scale=65536.0)
    (finding,) = found(replace(RIGHT, misuses=(place,)))
    assert (finding.rule, finding.site) == (rule, SITE)
    assert "19" in finding.evidence
    assert "in 20 steps watched" in finding.evidence


def test_clipping_says_how_large_the_gradients_are():
    place = MisusePlace(kind=Misuse.CLIPPED_SCALED, site=SITE, count=3, what="clip_grad_norm_", scale=65536.0)
    (finding,) = found(replace(RIGHT, misuses=(place,)))
    assert finding.message == "clip_grad_norm_ clips gradients that are 65536 times too large."


@pytest.mark.parametrize(
    ("count", "in_loop", "severity"),
    [(1, 0, None), (2, 1, None), (20, 19, Severity.ERROR), (4, 3, Severity.WARNING)],
    ids=["once", "twice", "at every step", "now and then"],
)
def test_scalers_made_in_the_loop(count, in_loop, severity):
    made = ScalerMade(site=SITE, kind="GradScaler", count=count, num_in_loop=in_loop)
    findings = found(replace(RIGHT, scalers=(made,)))
    assert [one.severity for one in findings] == ([] if severity is None else [severity])


def test_a_checkpoint_without_the_scaler():
    save = SavedState(site=SITE, count=4, has_scaler=False)
    (finding,) = found(replace(RIGHT, saves=(save,)))
    assert (finding.rule, finding.severity) == ("DR706", Severity.WARNING)
    assert finding.evidence == "4 checkpoints saved here in 20 steps, none with a scaler's state"


@pytest.mark.parametrize(
    "usage",
    [
        replace(RIGHT, saves=(SavedState(site=SITE, count=4, has_scaler=True),)),
        replace(RIGHT, saves=(SavedState(site=SITE, count=4, has_scaler=False),), num_scaled=0),
        replace(
            RIGHT,
            saves=(
                SavedState(site=SITE, count=4, has_scaler=False),
                SavedState(site=replace(SITE, line=10), count=4, has_scaler=True),
            ),
        ),
    ],
    ids=["with it", "no scaler", "in a file of its own"],
)
def test_a_state_that_is_kept_or_not_there_is_none(usage):
    assert found(usage) == []


def test_a_right_loop_is_reassured_with_figures():
    texts = [text for rule in RULES.values() for text in rule.reassure(case(RIGHT))]
    assert texts == [
        "all 20 backward passes ran outside of autocast",
        "the gradient scaler was used in its order in 20 scaled losses",
    ]
    assert [text for rule in RULES.values() for text in rule.reassure(case(None))] == []
    assert found(None) == []
