import pytest

import recordings
from ampwise.doctor.case import Case
from ampwise.doctor.diagnose import diagnose
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Finding, RuleInfo, Severity
from ampwise.records.run import Role


def rule(number, *findings, says=()):
    info = RuleInfo(
        id=f"DR{number}", name="made-up", severity=Severity.INFO, why="why", remedy="what to do", evidence="seen"
    )
    return Rule(info=info, check=lambda _: iter(findings), reassure=lambda _: iter(says))


def finding(number, severity, confidence):
    return Finding(rule=f"DR{number}", severity=severity, confidence=confidence, message="m", evidence="e")


def test_the_worst_and_surest_stands_first():
    light = finding(1, Severity.INFO, Confidence.CERTAIN)
    unsure = finding(2, Severity.ERROR, Confidence.POSSIBLE)
    sure = finding(3, Severity.ERROR, Confidence.CERTAIN)
    diagnosis = diagnose(recordings.normal(), rules=[rule(1, light), rule(2, unsure), rule(3, sure)])
    assert diagnosis.findings == (sure, unsure, light)
    assert not diagnosis.is_healthy


def test_a_rule_reassures_only_where_it_found_nothing():
    asked = [
        rule(1, finding(1, Severity.INFO, Confidence.LIKELY), says=["all is well"]),
        rule(2, says=["this is well"]),
    ]
    assert diagnose(recordings.normal(), rules=asked).reassurances == ("this is well",)


def test_the_watched_run_is_judged_and_others_are_asked_by_their_purpose():
    compared, watched = recordings.run("fp32", "fp32"), recordings.run("fp16", "fp16", role=Role.WATCHED)
    case = Case(recordings.recording([compared, watched], []))
    assert case.run is watched
    assert case.rerun(Role.COMPARED) is compared
    assert case.rerun(Role.TRACED) is None


def test_without_a_run_there_is_nothing_to_judge():
    with pytest.raises(ValueError, match="without a run"):
        diagnose(recordings.empty(), rules=[])


def test_a_remark_is_no_illness():
    asked = [rule(1, finding(1, Severity.INFO, Confidence.CERTAIN))]
    assert diagnose(recordings.normal(), rules=asked).is_healthy
    asked += [rule(2, finding(2, Severity.WARNING, Confidence.POSSIBLE))]
    assert not diagnose(recordings.normal(), rules=asked).is_healthy
