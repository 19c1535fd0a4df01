import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

import examined
import recordings
from ampwise.plan.file import parse_plan
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.finding import Confidence, Finding, Severity
from ampwise.records.run import Failure, Role, RunEnd
from ampwise.records.site import Phase, Site
from ampwise.report.diagnosis import diagnosis_json, render_diagnosis, verdict, whole_plan

RULE = '[[rule]]\nmodule = "layers.1.wo"\ncompute = "fp32"\n'
OVERFLOW = Finding(
    rule="DR102",
    severity=Severity.ERROR,
    message="The product overflows fp16",
    site=Site(phase=Phase.FORWARD, module="layers.1.wo", op="aten.mm", file="model.py", line=41),
    evidence="inputs up to 812 and 97 at step 3",
    remedy="keep layers.1.wo in fp32",
    plan_rule=RULE,
)
SLOW = Finding(rule="DR401", severity=Severity.WARNING, confidence=Confidence.LIKELY, message="The loop waits")
WATCHED = recordings.recording([recordings.run("fp16", "fp16", role=Role.WATCHED)], [])


def shown(diagnosis, recording=WATCHED):
    console = Console(file=io.StringIO(), width=80)
    render_diagnosis(recording, diagnosis, console)
    return console.file.getvalue()


def test_a_finding_is_shown_with_its_place_its_evidence_and_its_remedy_as_a_rule():
    text = shown(Diagnosis(findings=(OVERFLOW, SLOW)))
    assert text.startswith("Found 1 error, 1 warning.\n60 steps in fp16")
    assert "error DR102 layers.1.wo · aten.mm · forward · model.py:41\n" in text
    assert "seen: inputs up to 812 and 97 at step 3" in text
    assert "do: keep layers.1.wo in fp32" in text
    assert '    module = "layers.1.wo"\n' in text
    assert "The loop waits (likely)" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_what_an_instrument_could_not_see_is_told_of_a_run_that_went_well():
    noted = replace(examined.watched().memory, note="not watched: the script's own dispatch mode is on")
    run = examined.watched(memory=noted, end=RunEnd.STOPPED)
    text = shown(Diagnosis(findings=()), recordings.recording([run], []))
    assert text.endswith("Could not be looked at:\n- not watched: the script's own dispatch mode is on\n")
    crashed = replace(run, end=RunEnd.KILLED)
    assert "Could not" not in shown(Diagnosis(findings=()), recordings.recording([crashed], []))


@pytest.mark.parametrize(
    ("diagnosis", "text"),
    [
        (Diagnosis(findings=(), reassurances=("no value was non-finite in 20 steps",)), "Healthy: nothing was found."),
        (Diagnosis(findings=()), "nothing was measured"),
        (Diagnosis(findings=(replace(SLOW, severity=Severity.INFO),)), "Healthy: no error and no warning, 1 remark."),
        (Diagnosis(findings=(SLOW, SLOW)), "Found 2 warnings."),
    ],
)
def test_the_verdict_claims_no_more_than_was_measured(diagnosis, text):
    assert text in verdict(diagnosis)


def test_a_healthy_run_says_why_it_is_believed_so():
    text = shown(Diagnosis(findings=(), reassurances=("no value was non-finite in 20 steps",)))
    assert "Looked at and well:\n- no value was non-finite in 20 steps" in text


def test_the_document_names_every_field_even_where_nothing_is_known():
    document = diagnosis_json(WATCHED, Diagnosis(findings=(OVERFLOW, SLOW)))
    json.dumps(document, allow_nan=False)
    first, second = document["findings"]
    assert (first["module"], first["op"], first["phase"], first["file"], first["line"]) == (
        "layers.1.wo",
        "aten.mm",
        "forward",
        "model.py",
        41,
    )
    assert set(first) == set(second)
    assert second["module"] is None
    assert not document["healthy"]


def test_hostile_texts_are_inert():
    bad = replace(OVERFLOW, message=recordings.HOSTILE, plan_rule=recordings.HOSTILE, evidence=recordings.HOSTILE)
    text = shown(Diagnosis(findings=(bad,), reassurances=(recordings.HOSTILE,)))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_of_many_findings_the_worst_are_whole_the_next_have_a_line_and_the_rest_a_count():
    console = Console(file=io.StringIO(), width=80)
    render_diagnosis(WATCHED, examined.many(30), console, how_to_see_all="ampwise report --all r.json")
    text = console.file.getvalue()
    assert text.count("do: keep") == 3
    lines = [line for line in text.splitlines() if line.startswith(("error", "warning", "info"))]
    assert len(lines) == 13
    assert all(len(line) <= 80 for line in lines[3:])
    assert "and 17 more: 4 warnings, 13 info" in text
    assert "all of them in full: ampwise report --all r.json" in text
    assert len(text.splitlines()) <= 55


def test_asked_for_all_every_finding_is_whole():
    console = Console(file=io.StringIO(), width=80)
    render_diagnosis(WATCHED, examined.many(30), console, show_all=True, how_to_see_all="ampwise report --all r.json")
    text = console.file.getvalue()
    assert text.count("do: keep") == 30
    assert "--all" not in text


@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_path_longer_than_the_line_stays_whole_so_that_it_can_be_copied(width):
    diagnosis = examined.many(1)
    console = Console(file=io.StringIO(), width=width)
    render_diagnosis(WATCHED, diagnosis, console)
    assert diagnosis.findings[0].site.module in console.file.getvalue()


def test_without_colours_no_escape_is_printed_and_with_them_it_is():
    for options, is_coloured in (({"no_color": True}, False), ({}, True)):
        console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor", **options)
        render_diagnosis(WATCHED, Diagnosis(findings=(OVERFLOW,)), console)
        assert ("\x1b[1;31m" in console.file.getvalue()) is is_coloured


def test_the_rules_make_one_plan_that_can_be_loaded_and_the_text_says_how():
    run = recordings.run("emulated fp16", "emulated fp16", role=Role.WATCHED)
    diagnosis = Diagnosis(findings=(OVERFLOW, replace(OVERFLOW, rule="DR103"), SLOW))
    text = whole_plan(diagnosis, run)
    plan = parse_plan(text.replace('compute = "fp32"', 'compute = "fp32"\nbecause = "it overflows"'))
    assert (plan.default, [rule.module for rule in plan.rules]) == ("fp16", ["layers.1.wo"])
    said = " ".join(shown(diagnosis, recordings.recording([run], [])).split())
    assert (
        'save them there behind version = 1 and default = "fp16"; then ampwise run --emulate fp16 --plan plan.toml'
        in said
    )
    assert whole_plan(Diagnosis(findings=(SLOW,)), run) is None


def test_a_further_run_that_crashed_alone_is_told():
    first = recordings.run("fp16", "fp16", role=Role.WATCHED)
    again = replace(first, role=Role.IN_FP32, failure=Failure(kind="exit status 1", message=""), end=RunEnd.FAILED)
    text = shown(Diagnosis(findings=(SLOW,)), recordings.recording([first, again], []))
    assert "The run made again in fp32 crashed where that one did not: exit status 1." in text
    both = replace(first, failure=again.failure, end=RunEnd.FAILED)
    assert "where that one did not" not in shown(Diagnosis(findings=(SLOW,)), recordings.recording([both, again], []))


def test_two_findings_about_one_place_are_one_rule_of_the_plan():
    again = replace(OVERFLOW, rule="DR301", plan_rule=f'{RULE}because = "another"\n')
    other = replace(OVERFLOW, plan_rule=f'{RULE}op = "softmax"\n')
    text = whole_plan(Diagnosis(findings=(OVERFLOW, again, other)), WATCHED.runs[0])
    assert text.count("[[rule]]") == 2
    assert "another" not in text


def test_a_script_with_its_own_precision_is_not_sent_to_a_command_that_applies_no_rule_to_it():
    run = recordings.run("fp16", "fp16", role=Role.WATCHED, left_alone="its own autocast at train.py:9")
    said = " ".join(shown(Diagnosis(findings=(OVERFLOW,)), recordings.recording([run], [])).split())
    assert "run --plan" not in said
    assert '; then put ampwise.apply_plan(model, "plan.toml") in the place of the script\'s own autocast' in said


def test_a_plan_of_the_scripts_own_is_where_the_rules_go():
    own = "ampwise.PrecisionScheduler (fp16) made at train.py:5"
    run = recordings.run("fp16", "fp16", role=Role.WATCHED, left_alone=own)
    said = " ".join(shown(Diagnosis(findings=(OVERFLOW,)), recordings.recording([run], [])).split())
    assert f"; then add them to the script's own plan, {own}" in said


@pytest.mark.parametrize(("end", "is_told"), [(RunEnd.STOPPED, True), (RunEnd.FINISHED, False)])
def test_a_healthy_run_that_was_stopped_is_healthy_that_far_only(end, is_told):
    recording = recordings.recording([replace(recordings.run("fp16", "fp16", role=Role.WATCHED), end=end)], [])
    assert ("Later steps were not looked at" in shown(Diagnosis(findings=()), recording)) is is_told
    assert "Later steps" not in shown(Diagnosis(findings=(OVERFLOW,)), recording)
    healthy = Diagnosis(findings=(), reassurances=("all is well",))
    assert verdict(healthy, recording.runs[0]).startswith("Healthy in the 60 steps watched:") is is_told
