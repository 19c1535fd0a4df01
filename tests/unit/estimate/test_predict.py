"""What is told where the process that imagines the GPU never comes up."""

import sys

import pytest

from ampwise._base.errors import CannotRunError
from ampwise.estimate.order import GpuSpec
from ampwise.estimate.predict import predicting
from ampwise.estimate.wanted import wanted
from ampwise.runner.script import Target

GPU = GpuSpec(name="imaginary", compute_capability=(8, 0), total_bytes=2**34, context_bytes=0)


def test_a_worker_that_cannot_start_is_told_with_what_it_said(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho \"No module named 'torch'\" >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with predicting(GPU) as predict:
        for _ in range(2):  # before it has ended, and after
            with pytest.raises(CannotRunError, match="nothing can be estimated here: No module named 'torch'"):
                predict(Target(path="train.py"), wanted("fp32", gpu=GPU))
