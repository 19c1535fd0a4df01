"""``ampwise estimate`` on scripts as users write them, and on those that cannot be estimated."""

import json
import os
import subprocess
import sys

import pytest

import ampwise

TRAIN = """\
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(1000):
    x = torch.randn(args.batch_size, 1024, device=device)
    loss = nn.functional.cross_entropy(net(x), torch.zeros(args.batch_size, dtype=torch.long, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())
    torch.save(net.state_dict(), "best.pt")
"""


def estimate(folder, *arguments, script=TRAIN):
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "ampwise", "estimate", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_a_script_is_estimated_in_two_precisions_and_writes_nothing(tmp_path):
    done = estimate(
        tmp_path, "--device", "t4", "--precision", "fp32,bf16", "--json", "train.py", "--batch-size", "4096"
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0
    fp32, bf16 = document["variants"]
    assert (fp32["fits"], bf16["fits"]) == (True, True)
    assert bf16["by_category"]["activation"] < fp32["by_category"]["activation"]
    assert fp32["by_category"]["parameter"] == bf16["by_category"]["parameter"] == 4_194_304 + 4096 + 40_960 + 512
    assert fp32["peak_line"].startswith("train.py:")
    assert not (tmp_path / "best.pt").exists()


@pytest.mark.slow
def test_the_largest_batch_fits_and_one_more_does_not(tmp_path):
    found = estimate(tmp_path, "--memory", "600MB", "--find-batch", "--batch-size", "--json", "train.py")
    assert found.returncode == 0
    largest = json.loads(found.stdout)
    assert largest["fits"]
    assert largest["batch_size"] > 1000
    more = str(largest["batch_size"] + 1)
    assert estimate(tmp_path, "--memory", "600MB", "train.py", "--batch-size", more).returncode == 1


def test_what_does_not_fit_ends_with_status_1_and_what_to_change(tmp_path):
    done = estimate(tmp_path, "--memory", "600MB", "train.py", "--batch-size", "65536")
    assert done.returncode == 1
    assert "does not fit" in done.stdout
    assert "half the batch" in done.stdout


BAD = {
    "on the CPU": ("net = torch.nn.Linear(3, 3)\nnet(torch.ones(3)).sum().backward()", "train.py:3", "on the CPU"),
    "never trains": ("torch.nn.Linear(3, 3).cuda()", "no training step found", ""),
    "a library": ("import flash_attn_that_is_not_here", "ModuleNotFoundError", "train.py:2"),
    "waits": ("while torch.ones(3).cuda().sum().item() < 1:\n    pass", "train.py:", "--time-limit"),
    "a file": ("open('data.bin')", "data.bin", "train.py:2"),
    "too much": ("torch.zeros(10**14, dtype=torch.long)", "RuntimeError", "train.py:2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_estimated_is_said_in_a_line(name, tmp_path):
    code, *expected = BAD[name]
    done = estimate(tmp_path, "--device", "t4", "--time-limit", "20", "train.py", script=f"import torch\n{code}\n")
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("ampwise: ")
    for text in expected:
        assert text in done.stderr


def test_an_operator_without_sizes_leaves_a_lower_bound(tmp_path):
    code = """\
import torch
net = torch.nn.EmbeddingBag(1000, 64, sparse=True).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.zeros(4, 2, dtype=torch.long).cuda()).sum().backward()
    optimizer.step()
"""
    done = estimate(tmp_path, "--device", "t4", "train.py", script=code)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "at least" in text
    assert "it fits" not in text
    assert "sparse_coo" in text
    assert "train.py:5" in text
    assert "its 64,000 parameters take" in text


def test_a_function_is_estimated_in_a_process_of_its_own():
    import torch
    from torch import nn

    model = nn.Linear(512, 512)

    def step():
        net = model.cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()

    estimate = ampwise.estimate_memory(step, device="a100-40gb", precision="bf16")
    assert estimate.fits
    assert estimate.allocated_bytes > 2 * 512 * 512 * 4
    assert model.weight.device.type == "cpu"
    assert model.weight.grad is None
    with pytest.raises(ampwise.CannotRunError, match="ZeroDivisionError"):
        ampwise.estimate_memory(lambda: 1 / 0, device="a100-40gb")
    with pytest.raises(ampwise.CannotRunError, match="ended with status 4"):
        ampwise.estimate_memory(lambda: os._exit(4), device="a100-40gb")
    with pytest.raises(ampwise.UsageError, match="GPU known here"):
        ampwise.estimate_memory(step, device="a101-40gb")
    with pytest.raises(ampwise.UsageError, match="give a function"):
        ampwise.estimate_memory(3, device="a100-40gb")
    with pytest.raises(ampwise.UsageError, match="precision"):
        ampwise.estimate_memory(step, device="t4", precision="bf61")
