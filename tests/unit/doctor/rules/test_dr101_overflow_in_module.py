import math
from dataclasses import replace

import pytest

import recordings
from ampwise.doctor.case import Case
from ampwise.doctor.rules.dr101_overflow_in_module import RULE
from ampwise.plan.file import parse_plan
from ampwise.records.nonfinite import FoundBy, NonFiniteKind, NonFiniteRecord, Operand, Origin
from ampwise.records.run import Role
from ampwise.records.site import Phase, Site

SITE = Site(phase=Phase.FORWARD, module="layers.1.wo", op="aten.mm", file="model.py", line=41)
ORIGIN = Origin(
    step=3,
    kind=NonFiniteKind.INF,
    site=SITE,
    found_by=FoundBy.TRACE,
    inputs=(
        Operand(dtype="fp16", shape=(8, 64), minimum=-811.0, maximum=812.0),
        Operand(dtype="fp16", shape=(64, 64), minimum=-97.0, maximum=95.0),
    ),
    output=Operand(dtype="fp16", shape=(8, 64), minimum=-6e4, maximum=6.1e4, num_infinite=12),
)
FP16 = recordings.run("fp16", "fp16", role=Role.WATCHED, num_steps=20)
LOST = replace(FP16, steps=recordings.steps([2.0, math.nan], 5.0, 0))


def case(*origins, reruns=(), watched=FP16):
    seen = NonFiniteRecord(num_steps=4, origins=tuple(origins))
    return Case(recordings.recording([replace(watched, nonfinite=seen), *reruns], []))


def test_the_operator_its_ranges_and_the_rule_are_named():
    (finding,) = RULE.check(case(ORIGIN))
    assert finding.message == "The result of aten.mm in layers.1.wo overflows fp16. fp16 ends at 65504."
    assert finding.site == SITE
    assert (
        "step 3: inputs fp16 8x64 from -811 to 812; fp16 64x64 from -97 to 95, its fp16 result holds 12 inf"
        in finding.evidence
    )
    plan = parse_plan(f'version = 1\ndefault = "fp16"\n{finding.plan_rule}')
    assert [(rule.module, rule.compute) for rule in plan.rules] == [("layers.1.wo", "fp32")]


def test_what_removed_the_fault_is_told():
    broken = recordings.run("fp16", "fp16", role=Role.UNSCALED, steps=recordings.steps([1.0, math.nan], 5.0, 0))
    cured = recordings.run("fp16", "fp16", role=Role.RESCUED)
    (finding,) = RULE.check(case(ORIGIN, reruns=(broken, cured), watched=LOST))
    assert "with the suspected modules in fp32 it is gone; without the loss scale it stays" in finding.evidence
    assert finding.plan_rule is not None


def test_reruns_that_could_not_do_what_they_were_for_say_nothing():
    own = "torch.autocast entered at train.py:3"
    given = "SGD given float16 parameters at train.py:3"
    same = replace(LOST, role=Role.RESCUED, left_alone=given)
    half = replace(LOST, role=Role.IN_FP32, precision="fp32", left_alone=given)
    (finding,) = RULE.check(case(ORIGIN, reruns=(same, half), watched=replace(LOST, left_alone=own)))
    assert finding.evidence.endswith("12 inf")
    assert "in layers.1.wo's forward write `with torch.autocast(x.device.type, enabled=False):`" in finding.remedy


def test_a_plan_of_the_scripts_own_is_told_the_rule():
    own = "ampwise.PrecisionScheduler (fp16) made at train.py:5"
    same = replace(LOST, role=Role.RESCUED, left_alone=own, fp32_modules=("layers.1.wo",))
    (finding,) = RULE.check(case(ORIGIN, reruns=(same,), watched=replace(LOST, left_alone=own)))
    assert "layers.1.wo in fp32 it" not in finding.evidence
    assert finding.remedy.endswith(f"The script's own plan decides there: give that rule to it, to {own}.")
    assert finding.plan_rule is not None


def test_a_fault_of_fp32_too_gets_no_rule():
    fp32 = recordings.run("fp32", "fp32", role=Role.IN_FP32, steps=recordings.steps([2.0, math.inf], 5.0, 0))
    (finding,) = RULE.check(case(ORIGIN, reruns=(fp32,), watched=LOST))
    assert finding.plan_rule is None
    assert "The same run in fp32 fails too, so precision cannot fix it" in finding.remedy
    assert "in fp32 it stays" in finding.evidence


def test_one_fault_in_every_layer_is_three_findings_and_a_count():
    many = [replace(ORIGIN, site=replace(SITE, module=f"layers.{number}.wo")) for number in range(9)]
    found = list(RULE.check(case(*many)))
    assert [one.site.module for one in found] == ["layers.0.wo", "layers.1.wo", "layers.2.wo"]
    assert "and at 6 more places: aten.mm in layers.3.wo, aten.mm in layers.4.wo" in found[2].evidence


@pytest.mark.parametrize(
    "origin",
    [
        replace(ORIGIN, kind=NonFiniteKind.NAN),
        replace(ORIGIN, site=replace(SITE, phase=Phase.BACKWARD)),
        replace(ORIGIN, output=replace(ORIGIN.output, dtype="bf16")),
        replace(ORIGIN, vanished=SITE),
    ],
    ids=["nan", "backward", "wide format", "vanished"],
)
def test_faults_of_other_kinds_are_left_to_their_rules(origin):
    assert list(RULE.check(case(origin))) == []


def test_a_trace_is_believed_before_the_watched_run():
    guessed = replace(ORIGIN, site=Site(phase=Phase.FORWARD, op="aten.add"))
    traced = replace(FP16, role=Role.TRACED, nonfinite=NonFiniteRecord(num_steps=4, origins=(ORIGIN,)))
    assert [one.site for one in RULE.check(case(guessed, reruns=(traced,)))] == [SITE]


def test_a_healthy_run_is_reassured_only_where_somebody_looked():
    assert list(RULE.reassure(case())) == ["no loss, gradient or weight was infinite or NaN in 4 steps"]
    assert list(RULE.reassure(Case(recordings.recording([FP16], [])))) == []


@pytest.mark.parametrize(
    ("module", "words"), [("", "a model as a whole"), (None, "a line outside of the model")], ids=["model", "script"]
)
def test_where_no_rule_reaches_the_line_itself_is_to_change(module, words):
    (finding,) = RULE.check(case(replace(ORIGIN, site=replace(SITE, module=module))))
    assert finding.plan_rule is None
    assert finding.remedy == (
        f"No rule of a plan reaches {words}: there write `with torch.autocast(x.device.type, enabled=False):` and "
        "compute with `x.float()`; or compute in bf16, which has fp32's range."
    )


def test_several_operators_of_a_module_are_one_finding_for_one_rule_serves_them():
    add = replace(ORIGIN, site=replace(SITE, op="aten.add", line=43))
    (finding,) = RULE.check(case(ORIGIN, add))
    assert finding.site == SITE
    assert "; aten.add (model.py:43) of this module too" in finding.evidence
    in_script = [replace(one, site=replace(one.site, module=None)) for one in (ORIGIN, add)]
    assert len(list(RULE.check(case(*in_script)))) == 2


def test_a_module_that_casts_by_itself_is_told_so():
    seen = NonFiniteRecord(num_steps=4, origins=(ORIGIN,))
    rescued = replace(LOST, role=Role.RESCUED, fp32_modules=("layers.1.wo",), nonfinite=seen)
    (finding,) = RULE.check(case(ORIGIN, reruns=[rescued], watched=LOST))
    assert finding.plan_rule is None
    assert finding.remedy.startswith(
        "The module computes in fp16 there with autocast off, too: leave out the `.half()`"
    )
