import pytest

from ampwise.records.run import RunEnd, RunRecord, StepRecord, num_warm_up, timed_steps


def _run(times, *, optimizers=1, end=RunEnd.STOPPED, **fields) -> RunRecord:
    steps = tuple(
        StepRecord(index=index, optimizer=index % optimizers, loss=1.0, time_ms=time, **fields)
        for index, time in enumerate(times)
    )
    return RunRecord(variant="fp32", precision="fp32", reason="asked for", repeat=0, end=end, steps=steps)


@pytest.mark.parametrize(("num_steps", "num_left_out"), [(3, 2), (20, 2), (21, 3), (60, 6)])
def test_a_tenth_is_warm_up_and_at_least_two(num_steps, num_left_out):
    assert num_warm_up(num_steps) == num_left_out
    timed = timed_steps(_run([1.0] * num_steps))
    assert [step.index for step in timed] == list(range(num_left_out, num_steps))


def test_a_step_without_a_time_is_none_of_them():
    assert [step.index for step in timed_steps(_run([None, 1.0, 1.0, None, 1.0]))] == [2, 4]


def test_a_run_too_short_for_a_warm_up_counts_what_it_has():
    assert [step.index for step in timed_steps(_run([None, 5.0]))] == [1]


def test_only_the_first_optimizer_is_timed():
    assert {step.optimizer for step in timed_steps(_run([1.0] * 40, optimizers=2))} == {0}


@pytest.mark.parametrize("end", list(RunEnd))
def test_a_run_has_finished_at_its_own_end_or_at_the_one_set(end):
    assert _run([], end=end).has_finished is (end in (RunEnd.FINISHED, RunEnd.STOPPED))


def test_what_a_run_skipped_and_its_last_scale():
    run = _run([1.0, 2.0], skipped=True, scale=8.0)
    assert (run.num_skipped, run.final_scale) == (2, 8.0)
    assert _run([1.0]).final_scale is None
