import math
from dataclasses import replace

import pytest

import recordings
from ampwise._base.errors import CannotRunError
from ampwise.examine.examine import examine
from ampwise.records.nonfinite import FoundBy, NonFiniteKind, NonFiniteRecord, Origin
from ampwise.records.run import Role, RunEnd
from ampwise.records.site import Phase, Site
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec

TARGET = Target(path="train.py", argv=("--lr", "1"))
SPEC = LaunchSpec(precision="fp16", stop_after=4)


class Script:
    """Runs that come out as told; remembers what each was asked."""

    def __init__(self, *, loss=1.0, faults=("wo",)):
        self.asked = []
        self.loss = loss
        self.faults = faults

    def __call__(self, target, spec, *, on_step, output):
        assert target is TARGET
        assert output is None
        self.asked.append(spec)
        on_step(4)
        left = [name for name in self.faults if f'module = "{name}"' not in (spec.plan or "")][:1]
        sites = [Site(phase=Phase.FORWARD, module=name, op="aten.mm") for name in left]
        seen = tuple(Origin(step=0, kind=NonFiniteKind.INF, site=one, found_by=FoundBy.TRACE) for one in sites)
        loss = self.loss if left else 1.0
        steps = recordings.steps([loss] * 4, 5.0, 0, scale=None if spec.precision == "fp32" else 1.0)
        traced = NonFiniteRecord(num_steps=4, origins=seen) if spec.instruments == ("nonfinite",) else None
        return recordings.run(spec.precision, spec.precision, steps=steps, nonfinite=traced)


def examined(script, **options):
    return examine(TARGET, SPEC, run=script, describe=lambda _: recordings.ENVIRONMENT, **options)


def test_a_healthy_script_is_run_twice():
    recording = examined(Script())
    assert [run.role for run in recording.runs] == [Role.WATCHED, Role.IN_FP32]
    assert recording.command == ("train.py", "--lr", "1")


def test_a_faulty_script_is_traced_and_its_suspect_kept_in_fp32():
    script = Script(loss=math.nan)
    recording = examined(script)
    assert [run.role for run in recording.runs] == [
        Role.WATCHED,
        Role.TRACED,
        Role.UNSCALED,
        Role.IN_FP32,
        Role.RESCUED,
    ]
    assert 'module = "wo"' in script.asked[-1].plan


def test_modules_that_fail_one_behind_the_other_are_kept_in_fp32_together():
    recording = examined(Script(loss=math.nan, faults=("wo", "head", "norm")))
    rescued = [run.fp32_modules for run in recording.runs if run.role is Role.RESCUED]
    assert rescued == [("wo",), ("wo", "head"), ("wo", "head", "norm")]


def test_a_fault_that_no_module_explains_is_not_chased_for_ever():
    recording = examined(Script(loss=math.nan, faults=tuple("abcdefgh")))
    assert [run.role for run in recording.runs].count(Role.RESCUED) == 4


def test_every_step_of_every_run_is_told():
    seen = []
    examined(Script(), on_progress=seen.append)
    assert [(one.role, one.num_done, one.num_steps) for one in seen] == [
        (Role.WATCHED, 0, 4),
        (Role.WATCHED, 4, 4),
        (Role.IN_FP32, 0, 4),
        (Role.IN_FP32, 4, 4),
    ]


def test_a_script_that_does_not_train_is_refused():
    def idle(target, spec, *, on_step, output):
        return replace(recordings.FP32, end=RunEnd.NO_STEPS, steps=())

    with pytest.raises(CannotRunError):
        examined(idle)
