"""A measured run's loss scale, as a history."""

from ampwise.records.run import StepRecord
from ampwise.records.scaling import History, HistoryRow, history_of
from ampwise.records.scaling_signs import SignKind, signs


def test_a_measured_runs_scale_is_its_first_optimizers(made):
    run = next(run for run in made.skipping().runs if run.final_scale is not None)
    rows = history_of(run).rows
    assert [row.step for row in rows if row.skipped] == [0, 1, 2, 24]
    assert rows[0] == HistoryRow(step=0, scale=run.steps[0].scale, skipped=True)
    assert history_of(run, optimizer=1) == History()


def test_a_run_without_a_scale_has_no_history(made):
    run = next(run for run in made.normal().runs if run.final_scale is None)
    assert history_of(run) == History()
    assert signs(history_of(run)) == ()


def test_a_measured_run_can_be_judged(made):
    steps = tuple(
        StepRecord(index=place, optimizer=0, loss=1.0, time_ms=1.0, skipped=True, scale=2.0 ** (16 - place))
        for place in range(60)
    )
    (sign,) = signs(history_of(made.run("fp16", "fp16", steps=steps)))
    assert sign.kind is SignKind.EXPLOSION
