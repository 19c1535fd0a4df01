import math

import pytest

from ampwise.compare.summary import error_line, summarise
from ampwise.compare.variants import FP32, Variant
from ampwise.records.comparison import Verdict
from ampwise.records.run import RunEnd, StepRecord, num_warm_up, timed_steps

BF16 = Variant(name="bf16", precision="bf16")
LOSSES = tuple(3.0 - 0.01 * t + 0.01 * (t % 3) for t in range(40))
OTHER = tuple(loss + 0.02 for loss in LOSSES)


def row(runs, *, variant=BF16, fp32=(), first=None, **options):
    return summarise(variant, runs, fp32=fp32, first=runs if first is None else first, **options)


def test_figures_are_medians_and_ratios_to_the_first(run_of):
    fp32 = [
        run_of(LOSSES, step_ms=20.0, peak_tensor_bytes=3_000),
        run_of(OTHER, repeat=1, step_ms=24.0, peak_tensor_bytes=3_000),
    ]
    bf16 = [
        run_of(LOSSES, variant="bf16", step_ms=10.0, peak_tensor_bytes=2_000),
        run_of(OTHER, variant="bf16", repeat=1, step_ms=12.0, peak_tensor_bytes=1_900),
    ]
    summary = row(bf16, fp32=fp32, first=fp32, project_steps=3_600_000)
    assert summary.step_ms_median == 11.0
    assert summary.step_ms_iqr == 2.0
    assert summary.samples_per_second == pytest.approx(32 / 0.011)
    assert summary.projected_hours == pytest.approx(11.0)
    assert summary.ratio_time == 2.0
    assert (summary.peak_tensor_bytes, summary.ratio_memory) == (2_000, 1.5)
    assert summary.final_loss == pytest.approx(sum(LOSSES[-5:]) / 5 + 0.01)
    assert summary.verdict is Verdict.IDENTICAL
    assert (summary.variant, summary.precision, summary.error) == ("bf16", "bf16", None)


def test_the_first_steps_are_warm_up():
    assert [num_warm_up(n) for n in (1, 20, 60, 100)] == [2, 2, 6, 10]


def test_warm_up_and_slowed_steps_are_not_timed(run_of):
    times = (None, 500.0, 300.0, 10.0, None, 12.0)
    steps = tuple(StepRecord(index=i, optimizer=0, loss=1.0, time_ms=time) for i, time in enumerate(times))
    assert [step.time_ms for step in timed_steps(run_of(steps=steps))] == [300.0, 10.0, 12.0]


def test_a_run_too_short_for_a_warm_up_is_timed_as_it_is(run_of):
    steps = tuple(StepRecord(index=i, optimizer=0, loss=1.0, time_ms=time) for i, time in enumerate((None, 7.0)))
    assert [step.time_ms for step in timed_steps(run_of(steps=steps))] == [7.0]
    assert row([run_of(steps=steps[:1])]).step_ms_median is None


def test_of_several_optimizers_the_firsts_period_is_the_step_time(run_of):
    steps = tuple(
        StepRecord(index=i, optimizer=i % 2, loss=1.0, time_ms=10.0 + 90 * (i % 2), num_samples=8) for i in range(20)
    )
    summary = row([run_of(steps=steps)])
    assert summary.step_ms_median == 10.0
    assert summary.samples_per_second == pytest.approx(800.0)


def test_skips_are_summed_and_the_last_scale_told(run_of):
    steps = tuple(
        StepRecord(index=i, optimizer=0, loss=1.0, time_ms=1.0, skipped=i < 2, scale=1024.0 / (i + 1)) for i in range(4)
    )
    summary = row([run_of(steps=steps), run_of(steps=steps, repeat=1)])
    assert (summary.num_skipped, summary.final_scale) == (4, 256.0)


def test_allocated_bytes_give_the_ratio_where_storages_were_not_counted(run_of):
    first = [run_of(LOSSES, peak_allocated_bytes=400)]
    assert row([run_of(LOSSES, peak_allocated_bytes=100)], first=first).ratio_memory == 4.0
    assert row([run_of(LOSSES, peak_tensor_bytes=100)], first=first).ratio_memory is None


def test_a_variant_without_a_finished_run_is_a_row_with_its_error(failed_run, run_of):
    summary = row([failed_run(message="shapes\ndiffer", end=RunEnd.OUT_OF_MEMORY)], first=[run_of(LOSSES)])
    assert summary.error == "out of memory: ValueError: shapes differ (at train.py:3)"
    assert summary.verdict is summary.verdict_reason is summary.precision is summary.ratio_time is None
    assert (summary.step_ms_median, summary.final_loss, summary.num_skipped) == (None, None, 0)


def test_a_run_that_failed_beside_one_that_finished_is_told(failed_run, run_of):
    summary = row([run_of(LOSSES), failed_run(repeat=1)])
    assert summary.error is None
    assert summary.verdict_reason.endswith("1 of 2 runs failed: ValueError: no such file (at train.py:3)")


def test_of_what_a_script_printed_the_last_line_is_the_error(failed_run):
    run = failed_run("exit status 3", "warning: x\n\x1b[31musage: train.py\x1b[0m\n\n", None)
    assert error_line([run]) == "exit status 3: usage: train.py"
    assert error_line([failed_run("signal 9", "", None, end=RunEnd.KILLED)]) == "signal 9"


def test_other_ends_have_their_words(run_of):
    assert error_line([]) == "not run"
    assert error_line([run_of(end=RunEnd.NO_STEPS)]) == "no training step found"


def test_fp32s_own_row_is_the_reference(run_of):
    fp32 = [run_of(LOSSES), run_of(OTHER, repeat=1)]
    summary = row(fp32, variant=FP32, fp32=fp32)
    assert summary.verdict is None
    assert summary.verdict_reason.startswith("the reference; its noise between seeds")
    assert (summary.ratio_time, summary.projected_hours) == (1.0, None)


def test_a_loss_that_is_nan_stays_nan(run_of):
    assert math.isnan(row([run_of((1.0, math.nan))]).final_loss)
