"""The harness that runs PyTorch's own AMP tests: on tests of our own, since theirs are no part of this repository."""

import subprocess
import sys
from pathlib import Path

import pytest

SUBSTITUTE = Path(__file__).parent / "substitute.py"

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
    tests, record = tmp_path / "test_copy.py", tmp_path / "outcomes.toml"
    tests.write_text(TESTS)
    done = run(tests, "--record", record)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "torch: 3 passed" in done.stdout
    assert "TestAmp.test_grad_scaler_tells: passed with torch's names, failed with ampwise's" in done.stdout
    assert record.read_text() == (
        "[outcomes]\n"
        '"TestAmp.test_autocast_everywhere" = "passed"\n'
        '"TestAmp.test_grad_scaler_everywhere" = "passed"\n'
        '"TestAmp.test_grad_scaler_tells" = "failed"\n'
    )


def test_a_missing_copy_is_said(tmp_path):
    done = run(tmp_path / "nothing.py")
    assert done.returncode == 2
    assert "give a copy of PyTorch's test file" in done.stderr
