"""A run that is killed with SIGKILL, wherever it is, goes on from its last checkpoint as if it had not been."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "helpers" / "resumable.py"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def killed_at(folder, places):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", SCRIPT, folder, json.dumps(places)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["places"] == 64
    return report["ends"]


def check(ends):
    assert all(end["killed"] for end in ends)
    assert [end["place"] for end in ends if not end["same"]] == []


def test_at_every_kind_of_place(tmp_path):
    first, writing, after_overflow, late = killed_at(tmp_path, [2, 11, 13, 44])
    check([first, writing, after_overflow, late])
    assert first["saved"] is None
    assert writing["num_left"] == 1, "killed while the second checkpoint was written"
    assert after_overflow["saved"] == {"batches": 4, "skipped": True}
    assert late["saved"] == {"batches": 14, "skipped": False}


@pytest.mark.slow
def test_at_50_places(tmp_path):
    ends = killed_at(tmp_path, list(range(2, 52)))
    check(ends)
    assert {end["saved"]["skipped"] for end in ends if end["saved"]} == {True, False}
