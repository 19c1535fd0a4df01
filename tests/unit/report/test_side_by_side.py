import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

import examined
import recordings
from ampwise.records.diagnosis import Diagnosis
from ampwise.report.diagnosis import diagnosis_json
from ampwise.report.side_by_side import Side, outcome, overlaid, side_by_side, side_by_side_json
from ampwise.report.side_by_side_views import render_side_by_side, render_side_by_side_html


def both(before=examined.FAULTY, after=None, *, names=("a.json", "b.json")):
    after = after or Diagnosis(findings=(examined.SLOW, replace(examined.OVERFLOW, rule="DR102")))
    first = examined.faulty()
    quick = examined.watched(steps=recordings.steps(recordings.losses(60, 1), 10.0, 1), memory=None)
    second = examined.examination(quick)
    return side_by_side(
        Side(name=names[0], recording=first, diagnosis=before), Side(name=names[1], recording=second, diagnosis=after)
    )


def rows(pair):
    return {row.name: (row.before, row.after, row.change) for row in pair.rows}


def test_findings_are_gone_new_or_still_there_by_rule_and_place():
    made = both()
    assert [one.rule for one in made.gone] == ["DR101"]
    assert [one.rule for one in made.new] == ["DR102"]
    assert [one.rule for one in made.kept] == ["DR401"]


def test_the_figures_of_the_two_watched_runs_stand_beside_each_other():
    figures = rows(both().pairs[0])
    assert figures["step time"][2] == "2.00x faster"
    assert figures["peak memory"] == ("120 MiB", "1.77 GiB", "1410% more")
    assert figures["last loss"][0] == "nan"
    assert figures["skipped steps"] == ("6", "0", "changed")
    assert figures["precision"] == ("fp16", "fp16", "")


def test_what_changed_in_a_sentence():
    text = outcome(both())
    assert text == (
        "b.json against a.json: findings: 1 gone, 1 new, 1 still there; step time 2.00x faster; peak memory 1410% more."
    )


def test_equal_recordings_say_that_nothing_changed():
    side = Side(name="a.json", recording=examined.bare(), diagnosis=examined.HEALTHY)
    assert outcome(side_by_side(side, side)) == "a.json against a.json: nothing worth a word changed."


def test_losses_are_laid_over_each_other_also_where_the_names_are_equal():
    assert [run.variant for run in overlaid(both()).runs] == ["a.json", "b.json"]
    assert [run.variant for run in overlaid(both(names=("a", "a"))).runs] == ["a (1)", "a (2)"]


def test_comparisons_are_paired_by_variant():
    sides = [Side(name=name, recording=recordings.normal(), diagnosis=None) for name in ("a", "b")]
    made = side_by_side(*sides)
    assert [pair.name for pair in made.pairs] == ["fp32", "auto"]
    assert [run.variant for run in overlaid(made).runs] == ["a fp32", "b fp32", "a auto", "b auto"]


@pytest.mark.parametrize("make", recordings.ALL)
def test_any_two_recordings_can_be_set_side_by_side(make):
    one = Side(name="a", recording=make(), diagnosis=None)
    two = Side(name="b", recording=examined.faulty(), diagnosis=examined.FAULTY)
    for pair in ((one, two), (two, one), (one, one)):
        made = side_by_side(*pair)
        json.dumps(side_by_side_json(made), allow_nan=False)
        render_side_by_side(made, Console(file=io.StringIO(), width=80))
    assert "<img" not in render_side_by_side_html(side_by_side(one, two)).partition("<script")[0]


def test_a_finding_in_json_is_the_same_as_the_doctors():
    (gone,) = (one for one in side_by_side_json(both())["gone"] if one["rule"] == examined.OVERFLOW.rule)
    found = diagnosis_json(examined.faulty(), examined.FAULTY)["findings"]
    assert gone in found


def test_the_text_fits_its_terminal_and_names_every_finding():
    console = Console(file=io.StringIO(), width=80)
    render_side_by_side(both(), console)
    text = console.file.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    for said in ("New:", "Gone:", "Still there:", "error DR102 layers.1.wo", "Found 1 error, 1 warning."):
        assert said in text


def test_the_page_holds_the_sentence_the_figures_and_the_findings():
    page = render_side_by_side_html(both())
    for said in (
        "findings: 1 gone, 1 new, 1 still there",
        "2.00x faster",
        "error DR102 layers.1.wo",
        'data-figure="loss"',
    ):
        assert said in page
