"""Long training under everything that goes wrong: the scale stays in its bounds, and nothing piles up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "helpers" / "soak.py"


def soak(num_steps, seed):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", SCRIPT, str(num_steps), str(seed)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(report, num_steps):
    assert report["steps"] > 0.9 * num_steps, "the rest were empty batches"
    assert report["skipped"] > 0.04 * num_steps
    low, high = report["scale"]
    assert 2.0**-4 <= low < high <= 2.0**20
    assert report["finite"], "a parameter or buffer is not finite"
    (tensors, *others), (later_tensors, *later_others) = report["half"], report["end"]
    assert abs(later_tensors - tensors) <= 4, "a frozen parameter's gradient and state come and go; more is a leak"
    assert later_others == others, "open files or threads grew"


def test_300_steps():
    check(soak(300, 0), 300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_10_000_steps(seed):
    report = soak(10_000, seed)
    check(report, 10_000)
    assert report["grown_bytes"] < 2**20
