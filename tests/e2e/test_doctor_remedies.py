"""A plan that the doctor writes, put to use: ``ampwise run --plan`` does without the fault."""

import json
import math
import os

import pytest

from ampwise.plan.file import load_plan
from warm import python

LOOP = """
torch.manual_seed(0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(12):
    loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
"""
PRODUCT = """
import torch

class Ratio(torch.nn.Module):
    def forward(self, x):
        return x * 3e4 * 3e4 / (1e9 + x.abs())

model = torch.nn.Sequential(torch.nn.Linear(8, 8), Ratio(), torch.nn.Linear(8, 1))
batch = torch.ones(4, 8)
"""
HIDDEN = """
import torch

class Norm(torch.nn.Module):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

model = torch.nn.Sequential(torch.nn.Linear(8, 8), Norm(), torch.nn.Linear(8, 1))
with torch.no_grad():
    model[0].weight.mul_(400)
batch = torch.ones(4, 8)
"""
WEIGHT = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
with torch.no_grad():
    model[0].weight[0, 0] = 7e4
batch = torch.full((4, 8), 1e-4)
"""
ONE_BEHIND_THE_OTHER = """
import torch

class Cube(torch.nn.Module):
    def forward(self, x):
        return x * 1e3 * x * x / 1e9

model = torch.nn.Sequential(torch.nn.Linear(8, 8), Cube(), torch.nn.Linear(8, 8), Cube(), torch.nn.Linear(8, 1))
with torch.no_grad():
    model[0].weight.mul_(60)
    model[2].weight.fill_(100.0)
batch = torch.ones(4, 8)
"""
LOGARITHM = """
import torch

class Log(torch.nn.Module):
    def forward(self, x):
        p = 1 - (x * 0 + 1e-4)
        return torch.log(1 - p)

model = torch.nn.Sequential(torch.nn.Linear(8, 8), Log(), torch.nn.Linear(8, 1))
batch = torch.ones(4, 8)
"""
MASK = """
import torch

class Attention(torch.nn.Module):
    def forward(self, x):
        scores = -(x @ x.transpose(-1, -2)) + torch.full((), torch.finfo(x.dtype).min, dtype=x.dtype)
        return scores.softmax(-1) @ x

model = torch.nn.Sequential(torch.nn.Linear(8, 8), Attention(), torch.nn.Linear(8, 1))
with torch.no_grad():
    model[0].weight.fill_(1.0)
batch = torch.ones(4, 8)
"""
FAULTS = {
    "product": ("fp16", PRODUCT, "DR101"),
    "hidden": ("fp16", HIDDEN, "DR106"),
    "weight": ("fp16", WEIGHT, "DR108"),
    "chain": ("fp16", ONE_BEHIND_THE_OTHER, "DR101"),
    "mask": ("fp16", MASK, "DR103"),
    "logarithm": ("bf16", LOGARITHM, "DR102"),
}


def ampwise(*arguments, cwd):
    return python("-m", "ampwise", *arguments, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_training_under_the_doctors_plan_is_without_the_fault(name, tmp_path):
    format_, model, rule = FAULTS[name]
    (tmp_path / "train.py").write_text(model + LOOP)
    in_format = ("--emulate", "fp16") if format_ == "fp16" else ("--precision", format_)
    done = ampwise("doctor", *in_format, "--steps", 12, "--json", "--write-plan", "plan.toml", "train.py", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert rule in {one["rule"] for one in document["findings"]}, document
    emulated = in_format if format_ == "fp16" else ()
    trained = ampwise("run", *emulated, "--plan", "plan.toml", "train.py", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    losses = [float(line.split()[1]) for line in trained.stdout.splitlines() if line.startswith("loss")]
    assert len(losses) == 12
    assert all(map(math.isfinite, losses)), (losses, (tmp_path / "plan.toml").read_text())
    again = ampwise("doctor", *emulated, "--plan", "plan.toml", "--steps", 12, "--json", "train.py", cwd=tmp_path)
    rules = {one["rule"] for one in json.loads(again.stdout)["findings"]}
    assert not {one for one in rules if one < "DR2"}, again.stdout


@pytest.mark.slow
def test_a_plan_that_was_given_stays_in_front_of_the_rules_that_are_written(tmp_path):
    (tmp_path / "train.py").write_text(PRODUCT + LOOP)
    given = 'version = 1\ndefault = "fp16"\n\n[[rule]]\nmodule = "2"\ncompute = "bf16"\nbecause = "by hand"\n'
    (tmp_path / "given.toml").write_text(given)
    words = ("--emulate", "fp16", "--plan", "given.toml", "--steps", 4, "--write-plan", "written.toml", "train.py")
    done = ampwise("doctor", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    written = [(one.module, one.compute, one.because) for one in load_plan(tmp_path / "written.toml").rules]
    assert written[0] == ("2", "bf16", "by hand")
    assert [one[:2] for one in written[1:]] == [("1", "fp32")]
    assert (tmp_path / "given.toml").read_text() == given
