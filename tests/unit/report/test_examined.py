import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import examined
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.memory import MemoryCategory, MemoryOwner
from ampwise.records.run import Role
from ampwise.records.site import Phase, Site
from ampwise.records.switches import SwitchRecord
from ampwise.report.diagnosis import PURPOSES
from ampwise.report.examined import purpose
from ampwise.report.html import render_html
from ampwise.report.instrument_tables import owners_table


class Page(HTMLParser):
    """A page's tags, its text without scripts, and its figures."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.scripts, self._in_script = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag):
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data):
        (self.scripts if self._in_script else self.texts).append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def figures(self):
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def page():
    return Page(render_html(examined.faulty(), examined.FAULTY))


def test_the_verdict_is_first_and_then_what_to_do(page):
    text = page.text
    order = ["Found 1 error, 1 warning.", "start here", "The product overflows fp16", "What to do", "The loop waits"]
    places = [text.index(said) for said in order]
    assert places == sorted(places)
    assert text.count("start here") == 1


def test_a_finding_has_its_place_evidence_remedy_and_plan_rule(page):
    text = page.text
    for said in (
        "layers.1.wo · aten.mm · forward · model.py:41",
        "What to do keep layers.1.wo in fp32",
        'module = "layers.1.wo" compute = "fp32"',
        "Seen inputs up to 812 and 97 at step 3",
        "The loop waits (likely)",
    ):
        assert said in text
    assert sum("data-copy" in attrs for _, attrs in page.tags) == 2  # the rule, and all rules as a plan


def test_what_every_instrument_saw_is_shown(page):
    text = page.text
    for said in (
        "every weight fits fp16",  # what was found well
        "watched by every instrument fp16 60 6 nan at step 3 nan",  # the runs
        "again in fp32 fp32 60 0 none",
        "mm layers.1.wo model.py:41 forward 3 fp16 3.76e+03",  # where numbers were lost
        "Looking at every result took 6.50 ms of a step so watched.",
        "layers.1.wo Linear fp16 1.23% 0.04% 0.990000 7.0%",  # beside fp32
        "Who holds the peak",
        "activation layers.1.wo · aten.mm · forward · model.py:41 80.0 MiB 67% 7",
        "parameter elsewhere 40.0 MiB 33% 12",
        "backward 60.0 ms 60%",  # the step's parts
        "mm matmul fp16 50 8.00 ms 50%",  # operators
        "64 x 10 x 384 5 3.00 ms 64 x 16 x 384",  # products
        "model.py:41 .item() layers.1.wo 2",  # waits
        "layers.1.wo mm fp16 2 50% 2 2.00 KiB",  # casts
    ):
        assert said in text, said


def test_every_figure_has_its_place(page):
    places = [attrs["data-figure"] for _, attrs in page.tags if "data-figure" in attrs]
    kinds = ["activation", "gradient", "weight_gradient", "weight", "update"]
    assert places == ["loss", "scale", "steps", *(f"exponents-{kind}" for kind in kinds), "memory"]
    assert sorted(page.figures) == sorted(places)


def test_a_run_without_sections_is_a_page_all_the_same():
    text = Page(render_html(examined.bare(), examined.HEALTHY)).text
    assert "Healthy in the 60 steps watched: nothing was found." in text
    assert "no value was non-finite in 60 steps" in text
    assert "How large the numbers are" not in text
    assert "Who holds the peak" not in text


def test_lesser_findings_are_folded_but_all_are_there():
    text = Page(render_html(examined.bare(), examined.many(30))).text
    assert "22 more, of lesser weight" in text
    assert all(f"DR{100 + index}" in text for index in range(30))


def test_a_recording_without_runs_is_no_crash():
    text = Page(render_html(replace(examined.bare(), runs=()), Diagnosis(findings=()))).text
    assert "nothing was measured" in text


def test_nothing_hostile_becomes_a_tag():
    recording, diagnosis = examined.hostile()
    page = Page(render_html(recording, diagnosis))
    assert not {"img", "bold"} & {tag for tag, _ in page.tags}
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert not set("\x1b\u202e\udcff") & set(page.text + page.scripts[0])
    assert "<img" not in re.sub(r"\\u003c", "<", json.dumps(page.figures)).replace("&lt;img", "")


def test_no_tag_names_another_file(page):
    assert not [(tag, attrs) for tag, attrs in page.tags if {"src", "href", "action", "srcset"} & set(attrs)]


def test_each_run_bears_the_name_it_has_in_the_table_of_runs():
    words = {role: purpose(replace(examined.faulty().runs[0], role=role, precision="bf16")) for role in Role}
    assert words[Role.WATCHED] == "watched, bf16"
    assert (words[Role.IN_FP32], words[Role.UNSCALED]) == ("in fp32", "without the loss scale")
    assert all(words[role] in PURPOSES[role] for role in (Role.IN_FP32, Role.UNSCALED, Role.RESCUED))


def test_what_no_place_is_named_for_stands_last_however_large():
    def owner(site, size):
        return MemoryOwner(category=MemoryCategory.ACTIVATION, site=site, bytes=size, num_storages=1)

    known = [owner(Site(phase=Phase.OTHER, module=f"layers.{place}"), place + 1) for place in range(30)]
    table = owners_table((owner(Site(phase=Phase.OTHER), 1000), *known), 2000)
    assert [row[1] for row in table.rows] == [*(f"layers.{place}" for place in reversed(range(30))), "elsewhere"]
    assert table.num_left_out == 0


def test_moves_of_reruns_are_not_drawn_over_those_of_the_run_judged():
    move = SwitchRecord(step=1, group="0", before="fp16", after="fp32", is_raised=True, cause="nonfinite")
    recording = examined.faulty()
    moved = replace(recording, runs=tuple(replace(run, switches=(move,)) for run in recording.runs))
    assert sum(bool(run.switches) for run in moved.runs) > 1
    figures = Page(render_html(moved, examined.FAULTY)).figures
    assert len(figures["loss"]["layout"]["shapes"]) == 1
