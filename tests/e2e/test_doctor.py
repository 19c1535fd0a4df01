"""``ampwise doctor`` as a user types it: a fault named at its place, a healthy training, and odd scripts."""

import json
import os
from pathlib import Path

import pytest

from ampwise.plan.file import load_plan
from warm import fresh, python

HEALTHY = """
import sys
import torch

torch.manual_seed(0)
print("arguments", sys.argv[1:])
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(9):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PLANTED = """
import torch

class Ratio(torch.nn.Module):
    def forward(self, x):
        return x * 3e4 * 3e4 / (1e9 + x.abs())

model = torch.nn.Sequential(torch.nn.Linear(8, 8), Ratio(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(4, 8)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OWN_AMP = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
for _ in range(12):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def doctor(*arguments, cwd, temporary=None, by=python):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    return by("-m", "ampwise", "doctor", *arguments, cwd=cwd, env=environment)


def written(folder, source, name="train.py"):
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return folder


def test_a_planted_fault_is_named_with_its_rule(tmp_path):
    options = ("--steps", "3", "--json", "--record", "r.json", "--write-plan", "plan.toml")
    done = doctor(*options, "train.py", cwd=written(tmp_path, PLANTED))
    assert done.returncode == 1, done.stderr
    first = json.loads(done.stdout)["findings"][0]
    assert (first["rule"], first["module"], first["op"], first["phase"]) == ("DR101", "1", "aten.mul", "forward")
    assert (first["file"], first["line"]) == ("train.py", 6)
    assert 'module = "1"' in first["plan_rule"]
    plan = load_plan(tmp_path / "plan.toml")
    assert (plan.default, [(rule.module, rule.compute) for rule in plan.rules]) == ("fp16", [("1", "fp32")])
    assert plan.torch is not None, "an upgrade of torch is to change nothing silently"


def test_a_healthy_training_is_said_to_be_so_and_why(tmp_path):
    options = ["--precision", "fp32", "--json", "--record", "r.json", "--write-plan", "plan.toml"]
    done = doctor(*options, "train.py", "--lr", "1", cwd=written(tmp_path, HEALTHY), by=fresh)
    document = json.loads(done.stdout)  # what the script prints is not among it
    worst = [one for one in document["findings"] if one["severity"] == "error"]
    assert worst == []
    assert "no loss, gradient or weight was infinite or NaN in 9 steps" in document["reassurances"]
    assert "no finding has a remedy that a plan could carry out, so plan.toml was not written" in done.stderr
    *runs, place = done.stderr.splitlines()
    assert (runs[0], place) == ("ampwise: watching the training", "recording: r.json")
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "r.json"}


@pytest.mark.slow
def test_a_script_with_its_own_scaler_shows_its_skips(tmp_path):
    done = doctor("--json", "--record", "r.json", "train.py", cwd=written(tmp_path, OWN_AMP))
    assert done.returncode == 1, done.stderr
    runs = json.loads((tmp_path / "r.json").read_text())["runs"]
    watched = runs[0]
    assert watched["steps"][0]["scale"] == 2.0**40
    assert sum(step["skipped"] for step in watched["steps"]) >= 5
    assert all(step["loss"] < 1e3 for step in watched["steps"])


@pytest.mark.slow
def test_a_module_with_relative_imports(tmp_path):
    written(tmp_path, "", "pkg/__init__.py")
    written(tmp_path, HEALTHY.split("for _", maxsplit=1)[0], "pkg/parts.py")
    written(tmp_path, "from .parts import *\nfor _" + HEALTHY.split("for _")[1], "pkg/train.py")
    done = doctor("--precision", "fp32", "--record", "r.json", "-m", "pkg.train", "--steps", "1", cwd=tmp_path)
    assert done.returncode in {0, 1}, done.stderr
    assert "9 steps in fp32" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "rule"),
    [("import torch\nx = 1 +\n", None), ("import torch\nimport no_such_package\n", "DR609"), ("x = [][1]\n", "DR606")],
    ids=["syntax", "import", "no torch"],
)
def test_what_ends_before_the_first_step(tmp_path, source, rule):
    folder, temporary = tmp_path / "work", tmp_path / "tmp"
    temporary.mkdir()
    done = doctor("--json", "--record", "r.json", "train.py", cwd=written(folder, source), temporary=temporary)
    assert done.returncode == 1, done.stderr
    if rule is None:
        assert "SyntaxError" in done.stderr
    else:
        assert [one["rule"] for one in json.loads(done.stdout)["findings"]] == [rule]
    assert [path for path in temporary.iterdir() if str(path) not in done.stderr] == []


@pytest.mark.slow
@pytest.mark.parametrize("source", ["print('no training')\n", "import torch\nprint(torch.ones(2))\n"])
def test_what_does_not_train_is_refused_and_leaves_nothing(tmp_path, source):
    folder, temporary = tmp_path / "work", tmp_path / "tmp"
    temporary.mkdir()
    done = doctor("train.py", cwd=written(folder, source), temporary=temporary)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("ampwise: ")
    assert list(temporary.iterdir()) == []
