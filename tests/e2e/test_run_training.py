"""`ampwise run` on scripts that train: each run is made once and looked at by several tests."""

import json
import os
import re
import sys

import pytest

from warm import fresh, python

TRAIN = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(32, 8)
for epoch in range(2):
    for (batch,) in DataLoader(TensorDataset(x), batch_size=8):
        out = model(batch)
        loss = (out.float() - batch.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        assert torch.is_autocast_enabled("cpu") or out.dtype == torch.float32
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
print(out.dtype)
torch.save(model.state_dict(), "model.pt")
sys.exit(int(sys.argv[1]))
"""


def ampwise(*arguments, cwd, module=("ampwise",), by=python):
    return by("-m", *module, *arguments, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture(scope="module")
def plain(folder):
    return python("train.py", "0", cwd=folder).stdout


@pytest.fixture(scope="module")
def bf16(folder):
    return ampwise("run", "--precision", "bf16", "train.py", "5", cwd=folder, by=fresh)


@pytest.fixture(scope="module")
def as_json(folder):
    return ampwise("run", "--json", "--precision", "fp16", "--malloc", "system", "train.py", "0", cwd=folder)


@pytest.fixture(scope="module")
def fp32(folder):
    return ampwise("run", "--precision", "fp32", "train.py", "0", cwd=folder)


def losses(out):
    return [float(line) for line in out.splitlines() if re.fullmatch(r"[0-9.e+-]+", line)]


def test_the_script_trains_in_the_precision_and_keeps_its_status(bf16, plain):
    assert bf16.returncode == 5
    assert bf16.stdout.splitlines()[-1] == "torch.bfloat16"
    assert losses(bf16.stdout) != losses(plain)
    assert losses(bf16.stdout) == pytest.approx(losses(plain), rel=0.05)


def test_a_failed_run_ends_with_one_line(bf16):
    assert bf16.stderr == "ampwise: bf16, 8 steps; exit status 5\n"


def test_fp32_is_pythons_to_the_bit(fp32, plain):
    assert fp32.stdout == plain


def test_the_summary_says_precision_reason_steps_time_and_allocator(fp32):
    assert fp32.returncode == 0
    first, second, third = fp32.stderr.splitlines()
    assert first == "ampwise: fp32 on cpu: asked for"
    assert re.fullmatch(r"ampwise: 8 steps; median [0-9.]+ m?s a step", second)
    assert third == "ampwise: CPU allocator: tuned (large tensors are kept between steps)"


def test_json_is_one_document_and_the_scripts_output_moves(as_json):
    document = json.loads(as_json.stdout)
    assert (document["status"], document["precision"], document["num_steps"]) == (0, "fp16", 8)
    assert document["final_scale"] > 0
    assert document["allocator"] == "system"
    assert len(losses(as_json.stderr)) == 8


def test_run_lets_the_script_write_its_files(bf16, folder):
    assert (folder / "model.pt").exists()


def test_a_crash_is_the_scripts_own_traceback_from_its_own_frame(folder):
    (folder / "crash.py").write_text(
        "import torch\nmodel = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for i in range(3):\n    model(torch.ones(1, 2 + i // 2)).sum().backward()\n    optimizer.step()\n"
    )
    plain = fresh("crash.py", cwd=folder).stderr
    crashed = ampwise("run", "--precision", "bf16", "crash.py", cwd=folder, by=fresh)
    *traceback, summary = crashed.stderr.splitlines()
    assert crashed.returncode == 1
    assert traceback[:3] == plain.splitlines()[:3]
    assert "ampwise" not in "".join(traceback)
    assert summary == f"ampwise: bf16, 2 steps; ended by RuntimeError at {folder}/crash.py:5"


def test_a_script_that_asks_for_cuda_is_told_what_to_write(folder):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    (folder / "on_cuda.py").write_text("import torch\n\nmodel = torch.nn.Linear(2, 2)\nmodel.cuda()\n")
    refused = ampwise("run", "--precision", "fp32", "on_cuda.py", cwd=folder)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert re.fullmatch(r"ampwise: \S+/on_cuda.py:4 asks for CUDA, which this machine lacks .*\n", refused.stderr)
    assert "torch.cuda.is_available()" in refused.stderr


def test_what_the_machine_cannot_do_is_refused_before_training(folder):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    (folder / "careful.py").write_text("try:\n    import torch\nexcept Exception:\n    pass\nprint('went on')\n")
    refused = ampwise("run", "--precision", "tf32", "careful.py", cwd=folder)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr.startswith('ampwise: precision "tf32"')
    assert refused.stderr.count("\n") == 1


def test_a_script_without_training_says_what_was_looked_for(folder):
    (folder / "look.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    done = ampwise("run", "--precision", "fp32", "look.py", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "tensor(2.)\n")
    assert "no training step found: looked for a backward pass" in done.stderr
    assert "did not import torch" not in done.stderr


SPAWN = """
import os, socket, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        product = torch.ones(4, 4) @ torch.ones(4, 4)
        assert product.dtype == torch.float32
        return product[0] + index

def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context=["fork", "spawn"][rank]):
        optimizer.zero_grad()
        y = model(x)
        y.pow(2).mean().backward()
        optimizer.step()
        assert y.dtype == torch.bfloat16
    weights = [torch.empty_like(model.module.weight) for _ in range(2)]
    dist.all_gather(weights, model.module.weight.detach())
    assert torch.equal(*weights)
    dist.destroy_process_group()

if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, args=(port,), nprocs=2)
"""

RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    y = model(torch.randn(4, 4))
    y.pow(2).mean().backward()
    optimizer.step()
assert y.dtype == torch.bfloat16
dist.destroy_process_group()
"""

FORK = """
import multiprocessing, torch
def work(queue):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        y = model(torch.randn(4, 4))
        y.pow(2).mean().backward()
        optimizer.step()
    queue.put(str(y.dtype))
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=work, args=(queue,))
process.start()
assert queue.get() == "torch.bfloat16"
process.join()
"""


def check_summary(done, *, steps, times=1, ranks=1):
    lines = [line for line in done.stderr.splitlines() if line.startswith("ampwise: ")]
    assert done.returncode == 0, done.stderr
    assert lines.count("ampwise: bf16 on cpu: asked for") == times
    counted = f"{steps} steps" if ranks == 1 else f"{ranks} ranks, {steps} steps each"
    assert sum(line.startswith(f"ampwise: {counted}; median") for line in lines) == times
    assert len(lines) == 3 * times


@pytest.mark.slow
def test_processes_that_a_script_spawns_are_reached_and_its_data_workers_left_alone(folder):
    (folder / "spawn.py").write_text(SPAWN)
    check_summary(ampwise("run", "--precision", "bf16", "spawn.py", cwd=folder), steps=2)


def test_a_forked_process_that_trains_is_counted(folder):
    (folder / "fork.py").write_text(FORK)
    check_summary(ampwise("run", "--precision", "bf16", "fork.py", cwd=folder), steps=3)


def test_torchrun_behind_the_dashes_reaches_every_rank(folder):
    (folder / "ranks.py").write_text(RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check_summary(ampwise("run", "--precision", "bf16", "--", *launcher, "ranks.py", cwd=folder), steps=3, ranks=2)


@pytest.mark.slow
def test_torchrun_may_start_ampwise_itself_and_rank_0_speaks(folder):
    (folder / "ranks.py").write_text(RANKS)
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ampwise")
    done = ampwise("run", "--precision", "bf16", "ranks.py", cwd=folder, module=launcher)
    check_summary(done, steps=3, ranks=2)


@pytest.mark.slow
def test_accelerate_launch_is_reached(folder):
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    done = ampwise("run", "--precision", "bf16", "--", *launcher, "train.py", "0", cwd=folder)
    check_summary(done, steps=8)
    assert "torch.bfloat16" in done.stdout


@pytest.mark.slow
def test_a_rank_that_cannot_compute_in_the_precision_says_so(folder):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    refused = ampwise("run", "--precision", "tf32", "--", sys.executable, "train.py", "0", cwd=folder)
    assert refused.returncode == 3
    assert refused.stderr.startswith('ampwise: precision "tf32"')


def test_show_code_prints_a_diff(folder):
    shown = ampwise("run", "--show-code", "--precision", "bf16", "train.py", cwd=folder)
    assert shown.returncode == 0
    assert 'torch.autocast("cpu", dtype=torch.bfloat16)' in shown.stdout
    assert shown.stdout.startswith("--- train.py\n+++ train.py in bf16\n@@ ")


def test_show_code_of_a_syntax_error_is_cpythons_message(folder):
    (folder / "syntax.py").write_text("x = (\n")
    shown = ampwise("run", "--show-code", "--precision", "bf16", "syntax.py", cwd=folder)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.endswith("SyntaxError: '(' was never closed\n")
