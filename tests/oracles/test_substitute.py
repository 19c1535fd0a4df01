"""The harness that runs PyTorch's own AMP tests: on tests of our own, since theirs are no part of this repository."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SUBSTITUTE = Path(__file__).parent / "substitute.py"
RECORD = Path(__file__).parents[1] / "recordings" / "pytorch-amp-tests.json"

TESTS = """
import pickle
import unittest

import torch


class TestAmp(unittest.TestCase):
    def test_grad_scaler_everywhere(self):
        old = torch.cuda.amp.GradScaler(init_scale=3.0, enabled=False)
        for scaler in (torch.GradScaler("cpu"), torch.amp.GradScaler("cpu"), torch.cpu.amp.GradScaler(), old):
            self.assertIsInstance(scaler, torch.amp.GradScaler)
            self.assertIs(type(pickle.loads(pickle.dumps(scaler))), type(scaler))

    def test_autocast_everywhere(self):
        self.assertIs(torch.autocast, torch.amp.autocast)

    def test_grad_scaler_tells(self):
        self.assertFalse(hasattr(torch.GradScaler("cpu"), "last_step"))

    def test_something_else(self):
        raise AssertionError("not about AMP")
"""


def run(path, *arguments):
    command = [sys.executable, SUBSTITUTE, path, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_tests_end_as_with_torch_or_are_named(tmp_path):
    tests, record = tmp_path / "test_copy.py", tmp_path / "outcomes.json"
    tests.write_text(TESTS)
    record.write_text(json.dumps({"files": {"test_other.py": {}}}))
    done = run(tests, "--record", record, "--version", "1.0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "torch: 3 passed" in done.stdout
    assert "TestAmp.test_grad_scaler_tells: passed with torch's names, failed with ampwise's" in done.stdout
    both = {"torch": "passed", "ampwise": "passed"}
    assert json.loads(record.read_text()) == {
        "torch": torch.__version__,
        "files": {
            "test_other.py": {},
            "test_copy.py": {
                "version": "1.0",
                "outcomes": {
                    "TestAmp.test_autocast_everywhere": both,
                    "TestAmp.test_grad_scaler_everywhere": both,
                    "TestAmp.test_grad_scaler_tells": {"torch": "passed", "ampwise": "failed"},
                },
            },
        },
    }


def test_pytorchs_own_tests_end_as_with_torchs_names():
    """The record that ``./dev oracle`` made of copies that are no part of this repository."""
    document = json.loads(RECORD.read_text())
    rows = [row for file in document["files"].values() for row in file["outcomes"].values()]
    assert [row for row in rows if row["torch"] != row["ampwise"]] == []
    assert sum(row["ampwise"] == "passed" for row in rows) >= 39


def test_a_missing_copy_is_said(tmp_path):
    done = run(tmp_path / "nothing.py")
    assert done.returncode == 2
    assert "give a copy of PyTorch's test file" in done.stderr
