"""torchrun starts ampwise on every rank: one report, told by the first, and the fault on the rank it is of."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow

TRAIN = """
import sys, torch, torch.distributed as dist
from torch import nn

class Root(nn.Module):
    def forward(self, x):
        return (x - 3 if FAULT == "nan" and rank == 1 and index >= 5 else x + 3).sqrt()

FAULT = sys.argv[1] if len(sys.argv) > 1 else None
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Root(), nn.Linear(16, 4))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
for index in range(12):
    if FAULT == "crash" and rank == 1 and index == 5:
        raise ValueError("rank 1 has no more")
    if FAULT == "leave" and rank == 1 and index == 5:
        break
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", rank)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(TRAIN)
    return folder


def torchrun(*arguments, cwd):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ampwise", *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, timeout=240, check=False, env=environ
    )
    return SimpleNamespace(status=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())


def test_run_tells_once_what_all_ranks_did(folder):
    done = torchrun("run", "--json", "--precision", "auto", "train.py", cwd=folder)
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert (told["num_ranks"], told["num_steps"], told["notes"]) == (2, 12, [])
    assert done.err.count("done") == 2


def test_compare_makes_one_table_of_all_ranks(folder):
    arguments = ("--precision", "fp32,bf16", "--steps", "6", "--repeat", "1", "--record", "compared.json", "train.py")
    done = torchrun("compare", *arguments, cwd=folder)
    assert done.status == 0, done.err
    assert done.out.count("Allocator of every variant") == 1
    runs = json.loads((folder / "compared.json").read_text())["runs"]
    assert {run["variant"] for run in runs} == {"fp32", "bf16"}
    for run in runs:
        assert [one["rank"] for one in run["ranks"]] == [0, 1]
        assert [step["num_samples"] for step in run["steps"]] == [32] * 6


def test_doctor_blames_the_rank_and_the_operator_that_made_the_nan(folder):
    done = torchrun(
        "doctor", "--precision", "fp32", "--steps", "9", "--record", "seen.json", "train.py", "nan", cwd=folder
    )
    assert done.status == 1
    assert done.out.count("DR102") == 1
    assert "step 5 of rank 1: inputs fp32 16x16" in " ".join(done.out.split())
    assert "aten.sqrt in 2 takes the root of a negative number" in done.out
    watched = json.loads((folder / "seen.json").read_text())["runs"][0]
    assert {one["rank"] for one in watched["nonfinite"]["origins"]} == {1}
    tensors = watched["numerics"]["tensors"]
    assert {one["rank"] for one in tensors} <= {0, 1}


def test_a_crash_of_one_rank_is_told_in_its_own_words(folder):
    arguments = ("--precision", "fp32", "--steps", "9", "--repeat", "1", "--json", "train.py", "crash")
    done = torchrun("compare", *arguments, cwd=folder)
    assert done.status != 0
    assert "ValueError: rank 1 has no more" in done.out


def test_the_first_rank_says_that_another_came_to_its_end(folder):
    done = torchrun("run", "--precision", "fp32", "train.py", "leave", cwd=folder)
    assert done.status != 0
    (told,) = (line for line in done.err.splitlines() if line.startswith("ampwise: fp32, 5 steps; ended by"))
    assert "Another process of this training has ended or cannot be reached; this one is not at fault." in told
    assert "Where that is this one, the other came to its own end: give all ranks as many steps" in told


def test_another_launcher_is_told_to_be_torchrun(folder):
    environ = {**os.environ, "WORLD_SIZE": "2", "RANK": "0"}
    command = [sys.executable, "-m", "ampwise", "compare", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=240, check=False, env=environ)
    assert done.returncode == 2
    assert b"start them with torchrun: torchrun --nproc-per-node 2 -m ampwise compare train.py" in done.stderr


SHARDS = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for index in range(8):
    loss = model(torch.randn(16, 8)).square().mean()
    if dist.get_rank() == 1 and index in (3, 6):
        loss = loss * float("inf")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert all(param.full_tensor().isfinite().all() for param in model.parameters())
dist.destroy_process_group()
"""


def test_a_step_of_shards_is_left_out_by_all_ranks_where_one_overflows(folder):
    (folder / "shards.py").write_text(SHARDS)
    done = torchrun("run", "--json", "--precision", "fp16", "shards.py", cwd=folder)
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert (told["num_ranks"], told["num_skipped"], told["final_scale"], told["notes"]) == (2, 2, 16384.0, [])
