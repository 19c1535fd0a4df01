"""What the page on linting shows to copy can be copied: its YAML parses and says what the shipped hook says."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]


def blocks():
    page = (ROOT / "docs" / "linting.md").read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]


def test_the_hook_of_the_page_is_the_shipped_one():
    (shown,) = next(block for block in blocks() if "repos" in block)["repos"][0]["hooks"]
    (shipped,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert {key: shipped[key] for key in shown} == shown


def test_the_workflow_runs_the_linter_after_it_is_installed():
    workflow = next(block for block in blocks() if "jobs" in block)
    runs = [step["run"] for step in workflow["jobs"]["lint"]["steps"] if "run" in step]
    assert [run.split()[:2] for run in runs] == [["pip", "install"], ["ampwise", "lint"]]
