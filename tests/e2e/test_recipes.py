"""Every recipe runs alone, and does what it is for."""

import contextlib
import io

import pytest

from documentation import ROOT, blocks, sections, stand_ins

PAGE = ROOT / "docs/recipes.md"
RECIPES = dict(sections(PAGE))
WITHOUT_A_STEP = {"Convert a script", "Evaluate"}
"""What they claim they assert themselves."""


def test_no_recipe_is_lost():
    wanted = "clip accum penal several gan function stop batchnorm diffusion lora compile graph convert ddp average"
    headings = " ".join(RECIPES).lower()
    assert [word for word in wanted.split() if word not in headings] == []


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_runs_alone(heading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = stand_ins()
    code = blocks(RECIPES[heading], "python")
    assert code
    with contextlib.redirect_stdout(io.StringIO()):
        for block in code:
            exec(compile(block, heading, "exec"), names)
    assert heading in WITHOUT_A_STEP or names["result"].stepped
