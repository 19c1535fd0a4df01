import dataclasses
import math

import pytest

from ampwise.records.comparison import Verdict
from ampwise.report import cells
from ampwise.report.cells import NOTHING, Tone


def _rows(recording):
    return cells.rows(recording.comparison)


def test_a_row_reads_as_its_figures(made):
    row = _rows(made.normal())[1]
    assert (row.name, row.step_and_iqr, row.speed) == ("auto → bf16", "43.5 ms (1.12 ms)", "2.31x")
    assert (row.rate, row.projected, row.loss, row.verdict) == ("368", "72.5 min", "1.991", "within noise")
    assert (row.memory, row.saving, row.skipped, row.scale) == ("1.09 GiB", "1.62x", "0", NOTHING)
    assert row.error is None


@pytest.mark.parametrize(
    ("variant", "precision", "name"),
    [
        ("fp32", "fp32", "fp32"),
        ("auto", "bf16", "auto → bf16"),
        ("bf16+compile", "bf16", "bf16+compile"),
        ("auto+compile", "bf16", "auto+compile → bf16"),
        ("auto", None, "auto"),
    ],
)
def test_the_precision_is_named_where_the_variant_does_not_name_it(made, variant, precision, name):
    comparison = made.normal().comparison
    summary = dataclasses.replace(comparison.variants[0], variant=variant, precision=precision)
    assert cells.rows(dataclasses.replace(comparison, variants=(summary,)))[0].name == name


def test_a_failed_variant_has_dashes_and_its_error(made):
    row = _rows(made.crashed())[1]
    assert {row.step, row.iqr, row.speed, row.rate, row.loss, row.memory, row.saving, row.skipped} == {NOTHING}
    assert row.step_and_iqr == NOTHING
    assert row.verdict == "failed"
    assert row.error.startswith("RuntimeError at model.py:41")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, NOTHING), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (1.98765, "1.988"), (2e300, "2e+300")],
)
def test_a_figure_that_is_none_or_not_finite_says_so(value, text):
    assert cells.figure(value, cells.loss) == text


@pytest.mark.parametrize(("value", "text"), [(65536.0, "65,536"), (0.5, "0.5"), (1.0, "1"), (2.0**40, "1.09951e+12")])
def test_a_scale_is_whole_where_it_is(value, text):
    assert cells.scale(value) == text


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (99.96, "100"), (0.01234, "0.0123")])
def test_a_rate_has_three_digits(value, text):
    assert cells.rate(value) == text


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [
        (None, Tone.PLAIN),
        (Verdict.IDENTICAL, Tone.GOOD),
        (Verdict.WITHIN_NOISE, Tone.GOOD),
        (Verdict.DRIFTING, Tone.CAUTION),
        (Verdict.DIVERGED, Tone.BAD),
    ],
)
def test_the_verdict_sets_the_tone(made, verdict, tone):
    summary = dataclasses.replace(made.BF16, verdict=verdict)
    assert cells.tone_of(summary) is tone
    assert cells.tone_of(dataclasses.replace(summary, error="boom")) is Tone.BAD


def test_the_allocators_peak_stands_in_for_the_tensors(made):
    summary = dataclasses.replace(made.BF16, peak_tensor_bytes=None, peak_allocated_bytes=5)
    assert cells.peak_bytes(summary) == 5
    assert cells.peak_bytes(made.BF16) == 1_170_000_000


def test_names_are_inert(made):
    text = repr(_rows(made.hostile()))
    assert "\\x1b" not in text
    assert "\\u202e" not in text
