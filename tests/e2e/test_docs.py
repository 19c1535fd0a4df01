"""The documentation runs: its python with small stand-ins, its commands through the parser, its links to files."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/learn").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GENERATED = {"rules/doctor.md", "rules/lint.md"}
"""Pages that the build of the documentation writes."""
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#:]+)\)")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page, language):
    return [code for name, code in BLOCK.findall(page.read_text()) if name == language]


def stand_ins():
    """What the pages speak of and do not make: a model, its optimizer, a loader, a loss."""
    import torch

    import ampwise

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    return {
        "ampwise": ampwise,
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "loader": [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(8)],
        "criterion": torch.nn.CrossEntropyLoss(),
        "epoch": 3,
    }


@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA is not available")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = stand_ins()
    before = [param.clone() for param in names["model"].parameters()]
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)
    if page.name == "estimate.md":  # its model is in another process
        assert names["estimate"].fits
        return
    if "learn" in page.parts:  # its blocks say themselves what must be so
        return
    assert names["result"].stepped
    assert any(not old.equal(new) for old, new in zip(before, names["model"].parameters(), strict=True))


def commands():
    lines = [line for page in PAGES for code in blocks(page, "") for line in code.splitlines()]
    # what a command prints has apostrophes, which no shell would read
    found = [shlex.split(line, comments=True) for line in lines if "ampwise" in line.split()]
    return [words[words.index("ampwise") + 1 :] for words in found if "ampwise" in words and "pip" not in words]


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
        assert target in GENERATED or (page.parent / target).exists(), target


def test_the_readmes_are_those_of_their_source(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from readme_pages import readmes

    for name, text in readmes().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "written by ./dev docs; change docs/readme"
