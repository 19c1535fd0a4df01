"""All ranks leave the same steps out, by DDP and by FSDP2, over NCCL on GPUs and over gloo on a CPU."""

import json
import os
from pathlib import Path

import pytest
import torch

from warm import fresh

SCRIPT = Path(__file__).parents[1] / "helpers" / "agreement.py"


def trained(device_type, num_ranks):
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    done = fresh(*command, SCRIPT, device_type, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found):
    assert found["bad"]
    for name in ("ddp", "fsdp2"):
        assert found[name] == {"skipped": found["bad"], "agree": True, "finite": True}, name


@pytest.mark.gpu
def test_on_every_gpu_of_this_machine():
    check(trained("cuda", torch.cuda.device_count()))


@pytest.mark.slow
def test_on_a_cpu():
    check(trained("cpu", 2))
