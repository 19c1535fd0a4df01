from dataclasses import replace

from ampwise.records.run import RunEnd, RunRecord
from ampwise.runner.summary import ProcessReport, RunSummary, leave_report, read_reports, summary_lines

SUMMARY = RunSummary(
    precision="bf16",
    reason="asked for",
    device="cpu",
    num_steps=120,
    step_ms_median=40.25,
    num_skipped=0,
    final_scale=None,
    allocator="tuned",
)
RUN = RunRecord(variant="bf16", precision="bf16", reason="asked for", repeat=0, end=RunEnd.FINISHED)


def test_the_lines_say_precision_reason_steps_and_allocator():
    assert summary_lines(SUMMARY) == (
        "bf16 on cpu: asked for",
        "120 steps; median 40.2 ms a step",
        "CPU allocator: tuned",
    )


def test_a_loss_scale_brings_the_skipped_steps_with_it():
    lines = summary_lines(replace(SUMMARY, precision="fp16", num_skipped=2, final_scale=65536.0, num_steps=1))
    assert lines[1] == "1 step; median 40.2 ms a step; 2 skipped; final loss scale 65536"


def test_a_run_that_skipped_every_step_says_that_nothing_was_learnt():
    skipped = replace(SUMMARY, precision="fp16", final_scale=1.0, num_skipped=120)
    assert "every step was skipped" in summary_lines(skipped)[3]
    assert "`ampwise doctor`" in summary_lines(skipped)[3]
    assert len(summary_lines(replace(skipped, num_skipped=119))) == 3


def test_one_step_has_no_time():
    assert summary_lines(replace(SUMMARY, num_steps=1, step_ms_median=None))[1] == "1 step"


def test_the_scripts_own_mixed_precision_and_notes_are_said():
    lines = summary_lines(replace(SUMMARY, left_alone="torch.autocast at train.py:3", notes=("a", "b\x1b[31m\nc")))
    assert lines[0] == "the script's own mixed precision was left to it: torch.autocast at train.py:3"
    assert lines[3:] == ("note: a", "note: b c")


def test_reports_come_back_with_the_lowest_rank_first(tmp_path):
    first, second = ProcessReport(rank=0, summary=SUMMARY, run=RUN), ProcessReport(rank=1, summary=SUMMARY)
    leave_report(second, parts=str(tmp_path), name="7")
    leave_report(first, parts=str(tmp_path), name="9")
    (tmp_path / "5.report.json").write_text('{"half')
    (tmp_path / "other.json").write_text("{}")
    assert list(read_reports(str(tmp_path))) == [first, second]
    assert list(read_reports(str(tmp_path / "none"))) == []
