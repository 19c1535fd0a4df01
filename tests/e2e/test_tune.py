"""``ampwise tune`` as a user types it: known faults get the fix that is known, and every mistake its sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampwise.plan.file import load_plan
from ampwise.plan.plan import Plan, Rule
from ampwise.plan.writing import save_plan
from known_answers import KNOWN_ANSWERS

HERE = Path(__file__).parent
HELPERS, EXAMPLES = HERE.parent / "helpers", HERE.parents[1] / "examples"
SCRIPT = """
import sys
import torch
from known_answers import KNOWN_ANSWERS

torch.set_num_threads(1)
(answer,) = [one for one in KNOWN_ANSWERS if one.name == sys.argv[1]]
training = answer.make(int(sys.argv[2])).in_fp32()
for group in training.optimizer.param_groups:
    group["lr"] = 1e-12  # what is tried is the forward pass, from one set of weights
for _ in range(12):
    training.step()
"""
TINY = """
import sys
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
class Wide(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) / 1.5e5

model = torch.nn.Sequential(torch.nn.Linear(8, 8), Wide(8, 8), torch.nn.Linear(8, 1))
with torch.no_grad():
    model[1].weight.mul_(1.5e5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(12):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save(model.state_dict(), "best.pt")
"""


def tune(*arguments, folder, script="train.py"):
    words = script if isinstance(script, tuple) else (script,)
    return subprocess.run(
        [sys.executable, "-m", "ampwise", "tune", *map(str, (*arguments, *words))],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TINY)
    return tmp_path


def test_an_overflow_is_kept_in_fp32_and_nothing_else_of_the_users_changes(folder):
    done = tune("--steps", 8, "--json", "-o", "plan.toml", folder=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["outcome"] == "found"
    assert [one["module"] for one in document["kept"]] == ["1"]
    assert document["noise"]["rerun"] == 0.0
    assert [one["seed"] for one in document["trials"]] == [0, 1]
    assert all(one["error"] <= 1 for one in document["trials"])
    assert document["peak_tensor_bytes"] > 0
    plan = load_plan(folder / "plan.toml")
    assert [(rule.module, rule.compute) for rule in plan.rules] == [("1", "fp32")]
    assert plan.rules[0].because.startswith("fp16 overflow in addmm, amax ")
    assert "(train.py:9)" in plan.rules[0].because
    assert sorted(path.name for path in folder.iterdir()) == ["plan.toml", "train.py"]
    assert "ampwise run --plan plan.toml --emulate fp16 train.py" in done.stderr
    assert any("best.pt" in note for note in document["notes"])


PURE = {
    "longt5_residual": ("fp16", "add"),
    "rms_norm_square": ("fp16", "pow"),
    "mask_overflow": ("fp16", "add"),
    "saturated_log": ("bf16", "log1p"),
    "rope_positions": ("bf16", "mul"),
}
"""Faults of models that are in half precision throughout: the plan to begin with lowers the operator that fails."""
FIXED = ("t5_wo", "vae_conv", "fed_batch_norm", *PURE)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED)
def test_every_known_overflow_gets_the_known_fix(name, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    answer = next(one for one in KNOWN_ANSWERS if one.name == name)
    low, op = PURE.get(name, ("fp16", None))
    options = ["--target", low, "--steps", 12, "--json", "-o", "plan.toml"]
    if op is not None:
        save_plan(Plan(default=low, rules=(Rule(op=op, compute=low, because="pure"),)), tmp_path / "pure.toml")
        options += ["--plan", "pure.toml"]
    seed = KNOWN_ANSWERS.index(answer) % 5
    done = tune(*options, folder=tmp_path, script=("train.py", name, seed))
    assert done.returncode == 0, done.stdout + done.stderr
    kept = load_plan(tmp_path / "plan.toml").rules[op is not None :]
    assert [(rule.module, rule.compute) for rule in kept] == [(answer.module, "fp32")]
    assert kept[0].because


@pytest.mark.slow
def test_what_precision_cannot_fix_is_said(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = tune("--steps", 12, "-o", "plan.toml", folder=tmp_path, script=("train.py", "sinkhorn", 0))
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "so precision cannot fix this" in said
    assert "aten.exp in sinkhorn" in said
    assert not (tmp_path / "plan.toml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("low", ["fp16", "fp8"])
def test_the_example_with_an_overflow(low, tmp_path):
    done = tune("--target", low, "--steps", 16, "-o", "plan.toml", folder=tmp_path, script=EXAMPLES / "overflow.py")
    assert done.returncode == 0, done.stderr
    rules = load_plan(tmp_path / "plan.toml").rules
    assert [rule.module for rule in rules if rule.op is None] == (["layers.1.wo"] if low == "fp16" else [])


@pytest.mark.slow
def test_interrupted_by_its_budget_it_goes_on(folder):
    seen = []
    for minutes in (0.02, None):
        budget = () if minutes is None else ("--budget", minutes)
        resume = ("--resume",) if seen else ()
        done = tune(*budget, *resume, "--steps", 8, "--json", "-o", "plan.toml", folder=folder)
        seen.append(json.loads(done.stdout))
        assert (folder / "plan.toml.state").exists() == (minutes is not None)
    assert seen[0]["outcome"] == "nothing yet"
    assert seen[1]["outcome"] == "found"
    assert "--resume" in done.stderr or minutes is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("print('no training')", "no training step"),
        (
            TINY.replace("loss.backward()", "loss.sum().backward() if 0 else [p.register_hook(print) for p in ()]"),
            "loss",
        ),
        (
            TINY.replace("model = ", "model = torch.nn.Sequential() if 0 else ").replace(
                "x = torch", "raise OSError('x')"
            ),
            "",
        ),
        (
            TINY.replace("optimizer = ", "model.half(); optimizer = ").replace("randn(16, 8)", "randn(16, 8).half()"),
            "half",
        ),
        (
            TINY.replace("torch.manual_seed(0)", "torch.manual_seed(__import__('time').time_ns())"),
            "same seeds differ by",
        ),
    ],
    ids=["no training", "no loss", "fails", "half", "other data each time"],
)
def test_scripts_that_no_plan_can_be_judged_on(folder, source, says):
    (folder / "train.py").write_text(source)
    done = tune("--steps", 8, "--tolerance", 0.001, "-o", "plan.toml", folder=folder)
    assert done.returncode in {1, 3}, done.stdout
    assert says in done.stdout + done.stderr
    assert not (folder / "plan.toml").exists()
