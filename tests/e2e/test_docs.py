"""The documentation runs: its python with small stand-ins, its commands through the parser, its links to files."""

import contextlib
import io
import re
import shlex

import pytest

import documentation
from documentation import ROOT

PAGES = [
    *sorted(ROOT.glob("README*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/learn").glob("*.md")),
    *sorted((ROOT / "docs/concepts").glob("*.md")),
]
CONCEPTS = [page for page in PAGES if page.parent.name == "concepts" and page.name != "index.md"]
GENERATED = {ROOT / "docs" / name for name in ("reference.md", "rules/doctor.md", "rules/lint.md")}
"""Pages that the build of the documentation writes."""
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#:]+)\)")
TRIED_ELSEWHERE = {"recipes.md", "integrations.md", "distributed.md"}
"""By test_recipes.py, each recipe alone; by test_integrations_page.py, against the libraries, or by two ranks."""
LESSONS = [page for page in PAGES if page.parent.name == "learn" and page.name != "claims.md"]
"""Pages to paste into Python: they import all they use, and show all they print."""
BLOCK_AND_OUTPUT = re.compile(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
COMMENT_OF_PRINT = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
ANSWER = re.compile(r"^<details><summary>Answer</summary>\n(.*?)^</details>$", re.MULTILINE | re.DOTALL)
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.name}")


def blocks(page, language):
    return documentation.blocks(page.read_text(), language)


lessons = pytest.mark.parametrize(
    "page", [page for page in LESSONS if blocks(page, "python")], ids=lambda page: page.name
)


@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA is not available")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page not in LESSONS and page.name not in TRIED_ELSEWHERE],
    ids=lambda page: f"{page.parent.name}-{page.name}",
)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = documentation.stand_ins()
    before = [param.clone() for param in names["model"].parameters()]
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)
    if page.name == "estimate.md":  # its model is in another process
        assert names["estimate"].fits
        return
    if page.name == "claims.md" or page in CONCEPTS:  # their blocks say themselves what must be so
        assert "assert" in page.read_text()
        return
    assert names["result"].stepped
    assert any(not old.equal(new) for old, new in zip(before, names["model"].parameters(), strict=True))


def outputs(page):
    """What each block prints, and what the page says it prints: below the block, or behind its prints."""
    names = {}
    for code, below in BLOCK_AND_OUTPUT.findall(page.read_text()):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, str(page), "exec"), names)
        yield printed.getvalue().splitlines(), below.splitlines() or COMMENT_OF_PRINT.findall(code)


@lessons
def test_a_lesson_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for printed, shown in outputs(page):
        assert printed == shown


@lessons
def test_a_lesson_as_a_file_is_its_blocks_without_the_answers(page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from lesson import code_of

    text = page.read_text()
    answers = "".join(ANSWER.findall(text))
    code = code_of(text)
    compile(code, str(page), "exec")
    assert all((block in code) != (block in answers) for block in blocks(page, "python"))


@lessons
def test_every_exercise_has_an_answer_that_runs(page):
    text = page.read_text()
    exercises = re.findall(r"^\*\*\d\.\*\*", text.partition("## Exercises")[2], re.MULTILINE)
    answers = ANSWER.findall(text)
    assert len(answers) == len(exercises) >= 2
    assert all(re.search(r"^```python\n(.*\n)*? *(print|assert)", answer, re.MULTILINE) for answer in answers)


def test_the_pictures_are_those_of_the_formats(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from format_pictures import pictures

    for name, text in pictures().items():
        assert (ROOT / "docs/learn/pictures" / name).read_text() == text, "drawn by ./dev docs"


def commands():
    lines = [line for page in PAGES for code in blocks(page, "") for line in code.splitlines()]
    # what a command prints has apostrophes, which no shell would read
    found = [shlex.split(line, comments=True) for line in lines if "ampwise" in line.split()]
    return [words[words.index("ampwise") + 1 :] for words in found if "ampwise" in words[:-1] and "pip" not in words]


def test_commands_are_found():
    assert {words[0] for words in commands()} >= {"run", "compare", "report", "info", "explain"}


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_pages_is_one(words):
    from ampwise.cli.main import commands as group

    _, command, rest = group.resolve_command(group.make_context("ampwise", [], resilient_parsing=True), words)
    command.make_context(words[0], list(rest))


@pages
def test_the_links_of_a_page_lead_to_files(page):
    for target in LINK.findall(page.read_text()):
        file = (page.parent / target).resolve()
        assert file in GENERATED or file.exists(), target


def test_the_readmes_are_those_of_their_source(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from readme_pages import readmes

    for name, text in readmes().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "written by ./dev docs; change docs/readme"


def test_the_tutorial_shows_the_figures_of_the_readme():
    rows = re.findall(r"^\| (?:fp32|auto) .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 2
    assert all(row in (ROOT / "docs/tutorial.md").read_text() for row in rows)


def test_every_concept_is_in_the_overview_and_says_what_it_is_for():
    overview = (ROOT / "docs/concepts/index.md").read_text()
    picture = (ROOT / "docs/concepts/nouns.svg").read_text().lower()
    assert len(CONCEPTS) == 12
    for page in CONCEPTS:
        text = page.read_text()
        assert f"]({page.name})" in overview
        assert text.splitlines()[0].removeprefix("# ").lower() in picture
        assert all(part in text for part in ("**Why it exists.**", "```python", "Read on: ")), page.name
        assert len(text.splitlines()) <= 60


def test_the_rules_that_lessons_name_exist():
    from ampwise.doctor.rule import all_rules as doctors_rules
    from ampwise.lint.rule import all_rules as lints_rules

    known = {rule.info.id for rule in [*doctors_rules(), *lints_rules()]}
    named = {name for page in LESSONS for name in re.findall(r"\b(?:DR|MP)\d{3}\b", page.read_text())}
    assert named <= known
