"""``ampwise run --plan`` and ``compare`` with a plan: a model that overflows in fp16, rescued by one rule."""

import json

import pytest

from warm import fresh, python

SCRIPT = """
import torch
from torch import nn

class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi, self.wo = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return self.wo(torch.relu(self.wi(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(FeedForward() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)
    def forward(self, x):
        for layer in self.layers:
            x = x + layer(nn.functional.layer_norm(x, (8,)))
        return self.head(self.norm(x))

torch.manual_seed(0)
model = Model()
with torch.no_grad():
    for layer in model.layers:
        layer.wi.weight.mul_(900)
        layer.wo.weight.mul_(900)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(16, 8), torch.randint(4, (16,))
for _ in range(4):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
PLAN = """
version = 1
default = "fp16"
[[rule]]
module = "layers.*.wo"
compute = "fp32"
because = "overflows in fp16"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "misspelt.toml").write_text(PLAN.replace("wo", "w0"))
    return tmp_path


def ampwise(folder, *words, by=python):
    return by("-m", "ampwise", *words, cwd=folder)


def test_one_rule_rescues_an_overflow(folder):
    lost = json.loads(ampwise(folder, "run", "--emulate", "fp16", "--json", "train.py").stdout)
    assert lost["num_skipped"] == 4
    done = ampwise(folder, "run", "--plan", "plan.toml", "--emulate", "fp16", "train.py", by=fresh)
    assert done.returncode == 0
    assert 1 < float(done.stdout) < 3
    assert "0 skipped" in done.stderr
    assert "plan: rules[0], fp32 for layers.*.wo: layers.0.wo, layers.1.wo" in done.stderr


def test_a_rule_that_matched_nothing_is_told(folder):
    done = ampwise(folder, "run", "--plan", "misspelt.toml", "--emulate", "fp16", "train.py")
    assert '"layers.*.w0" matches no module; did you mean "layers.*.wo"?' in done.stderr


def test_a_plan_that_a_script_with_its_own_autocast_ends_is_told_of_at_once(folder):
    own = SCRIPT.replace("    loss = ", "    with torch.autocast('cpu', torch.bfloat16): loss = ")
    (folder / "own.py").write_text(
        own.replace("print(loss", "import sys; print('the script', file=sys.stderr); print(loss")
    )
    done = ampwise(folder, "run", "--plan", "plan.toml", "own.py")
    assert done.returncode == 0
    first, *_ = done.stderr.splitlines()
    assert first.startswith(
        "ampwise: the plan ends here: the script's own mixed precision is left to it: torch.autocast"
    )
    assert (
        done.stderr.index("plan ends here")
        < done.stderr.index("the script\n")
        < done.stderr.index("note: plan: not in")
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--plan", "nope.toml"], "nope.toml does not exist"),
        (["--plan", "plan.toml", "--precision", "bf16"], "--plan says the precision already"),
        (["--plan", "plan.toml", "--show-code"], "leave out one of it and --plan"),
    ],
)
def test_mistakes_are_told_before_anything_runs(folder, words, text):
    done = ampwise(folder, "run", *words, "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_a_refusal_to_a_script_is_not_called_a_fault_of_ampwises(folder):
    (folder / "twice.py").write_text(
        "import ampwise, torch\nmodel = torch.nn.Linear(4, 4)\n"
        "ampwise.apply_plan(model, 'bf16')\nampwise.apply_plan(model, 'bf16')\n"
    )
    done = ampwise(folder, "run", "twice.py")
    assert done.returncode == 1
    assert "a plan is in effect on this model already" in done.stderr
    assert "fault of ampwise" not in done.stderr


@pytest.mark.slow
def test_compare_takes_plans_as_variants(folder):
    done = ampwise(
        folder, "compare", "--precision", "fp32,plan.toml", "--steps", "3", "--repeat", "1", "--json", "train.py"
    )
    assert done.returncode == 0, done.stderr
    variants = json.loads(done.stdout)["variants"]
    assert [one["variant"] for one in variants] == ["fp32", "plan.toml"]
    assert [one["error"] for one in variants] == [None, None]
