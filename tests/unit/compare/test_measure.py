from pathlib import Path

import pytest

from ampwise._base.errors import CannotRunError
from ampwise.compare.measure import EXTRA_NOTE, ComparisonInterrupted, compare
from ampwise.compare.schedule import ComparisonPlan
from ampwise.compare.variants import parse_variants
from ampwise.records.files import from_json, to_json
from ampwise.records.recording import Recording
from ampwise.records.run import RunEnd
from ampwise.runner.script import Target
from recordings import ENVIRONMENT

TARGET = Target(path="train.py", argv=("--lr", "1"))


class FakeRunner:
    """Makes runs without a process; what ``fails`` and ``interrupts`` name ends otherwise."""

    def __init__(self, run_of, failed_run, *, fails=(), interrupts=(), end=RunEnd.STOPPED):
        self.calls = []
        self._run_of, self._failed_run = run_of, failed_run
        self._fails, self._interrupts, self._end = fails, interrupts, end

    def __call__(self, target, spec, *, on_step, output):
        assert target is TARGET
        key = (spec.precision, spec.repeat)
        self.calls.append(key)
        if output is not None:
            Path(output).mkdir(parents=True)
        if key in self._interrupts:
            raise KeyboardInterrupt
        on_step(3)
        on_step(spec.stop_after + 1)
        variant = {"fp32": 20.0, "auto": 10.0}.get(spec.precision, 5.0)
        if key in self._fails:
            return self._failed_run(variant="wrong", repeat=spec.repeat)
        losses = [2.0 - 0.01 * step + 0.05 * spec.repeat for step in range(spec.stop_after)]
        return self._run_of(
            losses, variant="wrong", precision="bf16", repeat=spec.repeat, step_ms=variant, end=self._end
        )


@pytest.fixture
def fake(run_of, failed_run):
    return lambda **options: FakeRunner(run_of, failed_run, **options)


def measure(run, text="fp32,auto", on_progress=None, **options):
    plan = ComparisonPlan(variants=parse_variants(text), num_steps=20, **options)
    return compare(TARGET, plan, run=run, describe=lambda _: ENVIRONMENT, on_progress=on_progress)


def test_the_recording_holds_every_run_and_a_row_a_variant(fake):
    run = fake()
    recording = measure(run, project_steps=100)
    assert run.calls == [("fp32", 0), ("auto", 0), ("auto", 1), ("fp32", 1)]
    assert [(r.variant, r.repeat) for r in recording.runs] == run.calls
    assert [row.variant for row in recording.comparison.variants] == ["fp32", "auto"]
    assert recording.comparison.variants[1].ratio_time == 2.0
    assert (recording.comparison.num_steps, recording.comparison.num_repeats) == (20, 2)
    assert recording.comparison.project_steps == 100
    assert recording.command == ("train.py", "--lr", "1")
    assert recording.environment is ENVIRONMENT
    assert from_json(to_json(recording), Recording) == recording


def test_a_variant_that_fails_is_a_row_and_is_not_run_again(fake):
    run = fake(fails=[("auto", 0)])
    recording = measure(run, "fp32,auto,bf16")
    assert run.calls == [("fp32", 0), ("auto", 0), ("bf16", 0), ("bf16", 1), ("fp32", 1)]
    errors = [row.error for row in recording.comparison.variants]
    assert errors == [None, "ValueError: no such file (at train.py:3)", None]
    assert recording.comparison.variants[2].ratio_time == 4.0


def test_where_the_first_variant_fails_there_are_no_ratios(fake):
    recording = measure(fake(fails=[("fp32", 0)]))
    first, second = recording.comparison.variants
    assert first.error is not None
    assert (second.error, second.ratio_time, second.verdict) == (None, None, None)
    assert second.verdict_reason == "no reference: no fp32 run finished"


def test_fp32_that_was_not_asked_for_is_in_no_row(fake):
    recording = measure(fake(), "auto")
    assert [row.variant for row in recording.comparison.variants] == ["auto"]
    assert recording.comparison.variants[0].verdict is not None
    extra = [run for run in recording.runs if run.variant == "fp32"]
    assert [run.notes for run in extra] == [(EXTRA_NOTE,), (EXTRA_NOTE,)]


def test_a_second_run_of_fp32_for_its_noise_is_not_in_its_median(fake, run_of):
    def run(target, spec, *, on_step, output):
        return run_of([1.0] * 20, repeat=spec.repeat, step_ms=10.0 + 90 * spec.repeat)

    recording = measure(run, "fp32,auto", num_repeats=1)
    assert recording.comparison.variants[0].step_ms_median == 10.0


def test_progress_goes_from_none_to_all(fake):
    told = []
    measure(fake(fails=[("auto", 0)]), on_progress=told.append)
    assert [one.num_done for one in told] == [0, 3, 20, 20, 23, 40, 40, 60, 63, 80]
    assert {(one.num_total, one.num_runs) for one in told} == {(80, 4)}
    assert [one.variant for one in told if one.run == 3] == ["auto"]


def test_interrupted_after_a_run_keeps_what_is_there(fake):
    with pytest.raises(ComparisonInterrupted) as interrupted:
        measure(fake(interrupts=[("auto", 0)]))
    recording = interrupted.value.recording
    assert [run.variant for run in recording.runs] == ["fp32"]
    assert [row.error for row in recording.comparison.variants] == [None, "not run"]


def test_interrupted_before_any_run_ended_is_plain(fake):
    with pytest.raises(KeyboardInterrupt) as interrupted:
        measure(fake(interrupts=[("fp32", 0)]))
    assert not isinstance(interrupted.value, ComparisonInterrupted)


def test_a_script_that_does_not_train_is_said_after_one_run(fake):
    run = fake(end=RunEnd.NO_STEPS)
    with pytest.raises(CannotRunError, match="no training step found: looked for a backward pass"):
        measure(run)
    assert run.calls == [("fp32", 0)]


def test_what_a_run_printed_is_kept_only_where_it_failed(fake, tmp_path):
    recording = measure(fake(fails=[("auto", 0)]), scratch=str(tmp_path))
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["auto-0"]
    kept = f"what it printed is kept in {tmp_path / 'output' / 'auto-0'}"
    assert [run.notes for run in recording.runs] == [(), (kept,), ()]


def test_what_the_runs_saved_and_what_changed_is_noted_once_for_all(fake, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    made = fake()

    def run(target, spec, **options):
        folder = Path(spec.scratch, f"{spec.precision}-{spec.repeat}")
        folder.mkdir(parents=True)
        (folder / "best.pt").write_text("")
        Path("log.txt").write_text(spec.precision)
        return made(target, spec, **options)

    recording = measure(run, scratch=str(tmp_path / "scratch"))
    assert [note.rpartition(": ")[2] for note in recording.notes] == ["best.pt", "log.txt"]
    assert not any(run.notes for run in recording.runs)


def test_what_an_interrupted_run_printed_is_not_kept(fake, tmp_path):
    with pytest.raises(ComparisonInterrupted):
        measure(fake(interrupts=[("auto", 0)]), scratch=str(tmp_path))
    assert list(Path(tmp_path, "output").iterdir()) == []
