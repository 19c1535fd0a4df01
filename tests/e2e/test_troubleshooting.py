"""The page of symptoms: its scripts have the findings that stand below them."""

import re

import pytest

from documentation import ROOT, sections
from warm import python

SYMPTOMS = dict(sections(ROOT / "docs/troubleshooting.md"))
CASE = re.compile(
    r"^```py\n(?P<script>.*?)^```$.*?^```\nampwise (?P<command>[^\n]*)\n```$\n+(?P<answer>(?:^    [^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)
CASES = [pytest.param(case, id=heading) for heading, text in SYMPTOMS.items() for case in CASE.finditer(text)]


def lines(text):
    """Without the measured share, which differs from run to run."""
    return [re.sub(r"\d+%", "N%", line.strip()) for line in text.splitlines() if line.strip()]


def test_every_symptom_of_the_table_has_a_script_or_says_why_not():
    assert [case.id for case in CASES] == [
        "NaN and infinity",
        "No speed-up",
        "No memory saved",
        "The dtypes do not match",
    ]
    assert "Not run on a GPU" in SYMPTOMS["CUDNN_STATUS_BAD_PARAM"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_command_answers_as_the_page_says(case, tmp_path):
    (tmp_path / "train.py").write_text(case["script"])
    done = python("-m", "ampwise", *case["command"].split(), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    found = lines(done.stdout)
    assert [line for line in lines(case["answer"]) if line not in found] == []


def test_the_estimate_is_the_commands():
    text = SYMPTOMS["No memory saved"]
    command = re.search(r"ampwise (estimate [^\n`]*)", text)[1].split()
    done = python("-m", "ampwise", *command)
    shown = re.search(r"at once:\n\n((?:^ {4,}[^\n]*\n)+)", text, re.MULTILINE)[1]
    assert [line for line in lines(shown) if line not in lines(done.stdout)] == []
