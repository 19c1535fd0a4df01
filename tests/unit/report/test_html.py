import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from ampwise.report.html import render_html


class Page(HTMLParser):
    """What a browser would make of a page: its tags, its text, its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.scripts, self.policy = [], [], [], ""
        self._inside = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._inside.append(dict(attrs))
            self.scripts.append("")
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]

    def handle_endtag(self, tag):
        if tag == "script":
            self._inside.pop()

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def pages(made):
    """Each handmade recording's page, by name."""
    return {make.__name__: Page(render_html(make())) for make in made.ALL}


def test_the_outcome_is_the_title_and_the_first_heading(pages):
    text = pages["normal"].text
    outcome = "auto (bf16) trains 2.31x as fast as fp32 and needs 38% less memory"
    assert text.index(outcome) < text.index("What each variant gained")


def test_the_page_holds_the_table_the_environment_and_what_was_equal(pages):
    text = pages["normal"].text
    for said in ("43.5 ms", "2.31x", "1.09 GiB", "within noise", "100,000 steps", "Platinum 8481C", "2.13.0+cpu"):
        assert said in text
    assert "the allocator: tuned (mallopt: mmap_threshold and trim_threshold raised)" in text
    assert "What the ratios mean" in text
    assert "torch.save of best.pt went to the scratch folder" in text


def test_the_scripts_errors_are_told(pages):
    text = pages["crashed"].text
    assert "What the script said" in text
    assert 'but got Float and BFloat16 File "model.py", line 41' in text


@pytest.mark.parametrize(("name", "count"), [("normal", 3), ("out_of_memory", 4), ("empty", 0)])
def test_what_was_measured_is_drawn(pages, name, count):
    places = [attrs["data-figure"] for tag, attrs in pages[name].tags if "data-figure" in attrs]
    assert len(places) == count
    assert sorted(json.loads(pages[name].scripts[0])) == sorted(places)


def test_an_empty_recording_is_a_page_that_says_so(pages):
    assert "This recording holds no runs and no comparison." in pages["empty"].text
    assert "What each variant gained" not in pages["empty"].text


def test_nothing_a_user_named_becomes_a_tag_or_an_attribute(pages):
    harmless, hostile = ({tag for tag, _ in pages[name].tags} for name in ("crashed", "hostile"))
    assert hostile <= harmless | {"small"}
    assert "img" not in hostile
    assert not [attrs for _, attrs in pages["hostile"].tags if any(name.startswith("on") for name in attrs)]
    assert len(pages["hostile"].scripts) == 3


def test_hostile_text_is_shown_as_it_is_but_for_its_control_characters(pages):
    page = pages["hostile"]
    assert "<img src=x onerror=alert(1)></script><script>alert(2)</script>red" in page.text
    assert not set("\x1b\u202e\udcff") & set(page.text + page.scripts[0])
    assert "{{7*7}}" in page.text


def test_the_page_can_be_written_as_utf8(made):
    assert render_html(made.hostile()).encode()


def test_the_policy_allows_nothing_but_the_pages_own_scripts(pages):
    for page in pages.values():
        rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
        digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts[1:]]
        assert rules["default-src"] == "'none'"
        assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]
        assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
        assert rules["img-src"] == "data: blob:"


def test_no_tag_names_another_file(pages):
    for page in pages.values():
        assert not [(tag, attrs) for tag, attrs in page.tags if {"src", "href", "action", "srcset"} & set(attrs)]


def test_the_style_names_no_other_file(made):
    style = re.search(r"<style>(.*?)</style>", render_html(made.empty()), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_plotlys_script_is_there_once(pages):
    assert sum("plotly.js v" in script for script in pages["repeated"].scripts) == 1


def test_rendering_leaves_torch_out():
    code = (
        "import sys, ampwise.report.html, ampwise.report.text, ampwise.report.machine\n"
        "print(sorted({'torch', 'pydantic', 'numpy', 'plotly.graph_objs'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
