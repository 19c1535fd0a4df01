import io
from dataclasses import replace

import pytest
from rich.console import Console

from ampwise.records.ranks import merged
from ampwise.records.run import Failure, RunEnd, RunRecord, StepRecord
from ampwise.report.cells import NOTHING
from ampwise.report.html import render_html
from ampwise.report.ranks import print_ranks, ranks_table


def rank(ahead, *, skipped=False, loss=1.0, **fields):
    steps = tuple(
        StepRecord(index=index, optimizer=0, loss=loss, time_ms=100.0, ahead_ms=ahead, skipped=skipped)
        for index in range(8)
    )
    options = {"variant": "bf16", "precision": "bf16", "reason": "", "repeat": 0, "end": RunEnd.FINISHED}
    return RunRecord(**{**options, "steps": steps, **fields})


@pytest.fixture
def both():
    died = Failure(kind="\x1b[31m<b>KeyError", message="17")
    return merged(
        [
            (0, rank(5.0, peak_tensor_bytes=10_000)),
            (1, rank(80.0, skipped=True, loss=float("nan"), end=RunEnd.FAILED, failure=died)),
        ]
    )


def test_a_run_alone_has_no_table(made):
    assert ranks_table([rank(5.0)]) is None
    assert "The ranks" not in render_html(made.normal())
    out = io.StringIO()
    print_ranks([rank(5.0, notes=("alone",))], Console(file=out), with_notes=True)
    assert out.getvalue() == ""


def test_a_row_a_rank(both):
    table = ranks_table([both])
    assert table.rows == (
        ("bf16", "0", "8", "0", "100 ms", "5.00 ms", "9.77 KiB", "none", "finished"),
        ("bf16", "1", "8", "8", "100 ms", "80.0 ms", NOTHING, "step 0", "<b>KeyError"),
    )


def test_what_a_killed_rank_did_is_not_known():
    killed = rank(5.0, steps=(), end=RunEnd.KILLED, failure=Failure(kind="signal 9", message=""))
    row = ranks_table([merged([(0, rank(5.0)), (1, killed)])]).rows[1]
    assert row == ("bf16", "1", *[NOTHING] * 6, "signal 9")


@pytest.mark.parametrize("width", [80, 200])
def test_the_terminal_shows_it_without_the_runs_name_where_there_is_but_one(both, width):
    out = io.StringIO()
    print_ranks([both], Console(file=out, width=width), with_notes=True)
    assert "bf16" not in out.getvalue()
    assert "note: rank 1 comes to its backward pass 75.0 ms later" in " ".join(out.getvalue().split())
    assert "80.0 ms" in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()
    out = io.StringIO()
    print_ranks([both, replace(both, variant="fp32", repeat=1)], Console(file=out, width=width))
    assert "fp32, 2" in out.getvalue()


def test_the_page_of_a_comparison_shows_it_inert(both, made):
    recording = made.normal()
    page = render_html(replace(recording, runs=(replace(recording.runs[0], ranks=both.ranks), *recording.runs[1:])))
    assert "The ranks" in page
    assert "80.0 ms" in page
    assert "<b>KeyError" not in page
