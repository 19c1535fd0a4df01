import io
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from ampwise.report.text import render_table, stdout_console


def _printed(recording, width, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    render_table(recording, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 124, 200])
def test_no_line_is_wider_than_the_terminal(any_recording, width):
    assert max(len(line) for line in _printed(any_recording, width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_holds_every_figure(made, width):
    text = _printed(made.normal(), width)
    for figure in ("43.5 ms", "1.12 ms", "2.31x", "368", "72.5 min", "1.991", "within noise", "1.09 GiB", "1.62x"):
        assert figure in text
    assert "tuned (mallopt" in text
    assert "within noise: its last losses differ from fp32's by 0.0035" in " ".join(text.split())
    assert "auto: torch.save of best.pt went to the scratch folder" in text


def test_wide_terminals_get_one_line_a_variant(made):
    (line,) = [line for line in _printed(made.normal(), 124).splitlines() if line.strip().startswith("auto → bf16  ")]
    assert "43.5 ms (1.12 ms)" in line
    assert "1.62x" in line


def test_the_outcome_comes_first(made):
    assert _printed(made.diverged(), 120).startswith("fp16 trains 1.82x as fast as fp32")


def test_a_failed_variant_says_so_in_words(made):
    text = " ".join(_printed(made.crashed(), 80).split())
    assert "bf16 did not finish: RuntimeError at model.py:41: mat1 and mat2 must have the same dtype" in text


def test_the_scale_and_the_skipped_steps_are_shown(made):
    assert "1,048,576" in _printed(made.skipping(), 80)


def test_an_empty_recording_says_so(made):
    assert _printed(made.empty(), 80).strip() == "This recording holds no runs and no comparison."


def test_names_are_no_markup_and_no_escape(made):
    text = _printed(made.hostile(), 300)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]" in text


def test_no_colour_where_none_is_wanted(made, monkeypatch):
    coloured = _printed(made.normal(), 80, force_terminal=True, color_system="standard")
    assert "\x1b[32m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in _printed(made.normal(), 80, force_terminal=True)


def test_a_poor_encoding_gets_question_marks(made, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    render_table(made.normal(), stdout_console())
    stdout.flush()
    assert b"fp32" in stdout.buffer.getvalue()


def test_where_nothing_finished_only_the_errors_are_shown(made):
    recording = made.crashed()
    failed = next(one for one in recording.comparison.variants if one.error is not None)
    text = _printed(replace(recording, comparison=replace(recording.comparison, variants=(failed,))), 80)
    lines = text.splitlines()
    assert lines[0] == "No variant finished."
    assert "did not finish" in lines[1]
    assert "Speed is" not in text
    assert "Step times" not in text


def test_notes_on_all_runs_are_shown_once(made):
    recording = replace(made.normal(), notes=("changed meanwhile: log.txt",))
    assert _printed(recording, 200).count("Changed meanwhile: log.txt") == 1
