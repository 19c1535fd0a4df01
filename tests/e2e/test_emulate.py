"""``--emulate`` as a user types it: a script that overflows in fp16 does so here, and refusals say what to write."""

import json
import os

import pytest

from warm import fresh, python

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
gain = float(sys.argv[1])
wi, wo = nn.Linear(16, 64, bias=False), nn.Linear(64, 1, bias=False)
with torch.no_grad():
    wi.weight *= gain
    wo.weight *= gain
optimizer = torch.optim.SGD([*wi.parameters(), *wo.parameters()], lr=1e-12)
for step in range(12):
    x = torch.randn(8, 16)
    loss = wo(torch.relu(wi(x))).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("finite" if loss.isfinite() else "overflow")
"""
OWN = """
import torch
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(3):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(16, 256)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
# torch's own kernel sums in fp16's low bits in another order; the emulation's is fp32's, rounded once
x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).half()
print(torch.equal(x @ x.t(), (x.float() @ x.float().t()).half()))
"""


def ampwise(*arguments, folder, by=python):
    return by("-m", "ampwise", *arguments, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulate")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "own.py").write_text(OWN)
    return folder


def test_fp16_overflows_where_fp32_does_not(folder):
    fp32 = ampwise("run", "--precision", "fp32", "train.py", "2000", folder=folder)
    fp16 = ampwise("run", "--emulate", "fp16", "train.py", "2000", folder=folder, by=fresh)
    assert (fp32.stdout, fp32.returncode) == ("finite\n", 0)
    assert (fp16.stdout, fp16.returncode) == ("overflow\n", 0)
    assert "ampwise: emulated fp16 on cpu: asked for; autocast in fp16 with loss scaling" in fp16.stderr
    assert "12 skipped" in fp16.stderr
    assert "every step was skipped" in fp16.stderr


def test_fp8_runs_and_the_summary_is_json_too(folder):
    done = ampwise("run", "--emulate", "fp8", "--json", "train.py", "1", folder=folder)
    document = json.loads(done.stdout)
    assert (document["precision"], document["emulated"], document["num_steps"]) == ("fp8_e4m3", True, 12)
    assert document["final_scale"] is None


def test_a_script_with_its_own_autocast_is_emulated_and_otherwise_left_alone(folder):
    done = ampwise("run", "--emulate", "fp16", "own.py", folder=folder)
    assert done.stdout == "True\n"
    assert "emulated fp16 on cpu; the script's own mixed precision was left to it" in done.stderr


@pytest.mark.slow
def test_compare_puts_emulation_beside_fp32(folder):
    arguments = ("--emulate", "fp16,tf32", "--steps", "8", "--repeat", "1", "--json")
    done = ampwise("compare", *arguments, "train.py", "2000", folder=folder)
    rows = {row["variant"]: row for row in json.loads(done.stdout)["variants"]}
    assert list(rows) == ["fp32", "emulated fp16", "emulated tf32"]
    assert [row["precision"] for row in rows.values()] == list(rows)
    assert [row["skipped"] for row in rows.values()] == [0, 8, 0]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("run", "--emulate", "fp17", "train.py"), 2, 'did you mean "fp16"'),
        (("run", "--emulate", "int8", "train.py"), 2, "is an integer format"),
        (("run", "--emulate", "fp32", "train.py"), 2, "use --precision fp32"),
        (("run", "--emulate", "fp16", "--precision", "bf16", "train.py"), 2, "leave --precision out"),
        (("run", "--emulate", "fp16", "--show-code", "train.py"), 2, "--show-code shows plain torch"),
        (("run", "--precision", "tf32", "train.py", "1"), 3, "--emulate tf32 computes on a CPU"),
        (("compare", "--emulate", "fp17,half,fp16", "train.py"), 2, '--emulate: "fp17" is not a format'),
        (("compare", "--emulate", "half,fp16", "train.py"), 2, "--emulate: emulated fp16; name each variant once"),
    ],
)
def test_refusals(arguments, status, text, folder):
    done = ampwise(*arguments, folder=folder)
    assert done.returncode == status
    assert done.stderr.startswith("ampwise: ")
    assert text in done.stderr
    assert "Traceback" not in done.stderr
