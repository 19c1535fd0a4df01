"""The walk of somebody new: from the README to a NaN of one's own that is found, mended and trained on."""

import math
import os
import re
import shlex
from pathlib import Path

import pytest

from warm import fresh, python

ROOT = Path(__file__).parents[2]
OWN = """
import torch
from torch import nn

torch.manual_seed(3)
width = 16
model = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width), nn.LayerNorm(width), nn.Linear(width, 4))
with torch.no_grad():
    model[2].weight.mul_(3e5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randn(32, width), torch.randint(4, (32,))
for step in range(30):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
"""


def ampwise(*words, cwd, by=python):
    return by("-m", "ampwise", *words, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"})


def losses(done):
    return [float(one) for one in re.findall(r"loss (\S+)", done.stdout)]


def promised(verb):
    """The README's command with that verb on ``examples/overflow.py``."""
    text = (ROOT / "README.md").read_text()
    line = next(one for one in re.findall(r"ampwise [^`\n]*overflow\.py", text) if f"ampwise {verb}" in one)
    return shlex.split(line)[1:]


@pytest.mark.slow
def test_the_readmes_nan_is_found_and_mended(tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "overflow.py").write_text((ROOT / "examples" / "overflow.py").read_text())
    found = ampwise(*promised("doctor"), cwd=tmp_path, by=fresh)
    assert found.returncode == 1, found.stderr
    assert "DR101 layers.1.wo" in found.stdout
    assert "examples/overflow.py:19" in found.stdout
    rule = re.search(r"\[\[rule\]\]\n(?: +\S.*\n)+", found.stdout).group()
    (tmp_path / "plan.toml").write_text('version = 1\ndefault = "fp16"\n' + rule)
    mended = ampwise(*promised("run"), cwd=tmp_path)
    assert mended.returncode == 0, mended.stderr
    plain = ampwise("run", "--precision", "fp32", "examples/overflow.py", cwd=tmp_path)
    assert losses(mended)[-1] < losses(mended)[0]
    assert losses(mended) == pytest.approx(losses(plain), rel=0.05)


def test_a_nan_of_ones_own_is_found_and_mended(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    sick = ampwise("run", "--emulate", "fp16", "mine.py", cwd=tmp_path)
    assert not all(map(math.isfinite, losses(sick)))
    assert "ampwise doctor" in sick.stderr, "who sees it is told where to go on"
    found = ampwise("doctor", "--emulate", "fp16", "--write-plan", "plan.toml", "mine.py", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert re.search(r"error DR101 2 · aten\.addmm · forward · mine\.py:\d+", found.stdout)
    assert "plan: plan.toml" in found.stderr
    mended = ampwise("run", "--emulate", "fp16", "--plan", "plan.toml", "mine.py", cwd=tmp_path)
    assert mended.returncode == 0, mended.stderr
    assert all(map(math.isfinite, losses(mended)))
    assert losses(mended)[-1] < losses(mended)[0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run min.py", "can't open file"),
        ("run", "Missing argument 'SCRIPT [ARGUMENTS]...'"),
        ("rum mine.py", 'did you mean "run"'),
        ("mine.py", "to run a script: ampwise run mine.py"),
        (r"run .\mine.py", "No such file or directory"),
        ("run --precision bf61 mine.py", 'did you mean "bf16"'),
        ("run folder", "name the script in that folder"),
        ("doctor min.py", "can't open file"),
        ("tune mine.py", "Missing option '-o'"),
        ("plan show fp16-saef", 'did you mean "fp16-safe"'),
        ("explain softmx", 'did you mean "softmax"'),
    ],
)
def test_the_mistakes_of_a_first_day_are_answered(tmp_path, line, says):
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "folder").mkdir()
    done = ampwise(*line.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ampwise: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_narrow_terminal_without_colour_or_home_gets_lines_that_fit(tmp_path, columns):
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    environment |= {"COLUMNS": columns, "NO_COLOR": "1"}
    done = fresh("-m", "ampwise", "explain", "fp16", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    assert "\x1b" not in done.stdout
