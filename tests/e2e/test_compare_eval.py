"""``ampwise compare --eval`` as a user types it, on a script that only evaluates."""

import json
import os
import re

import pytest

from documentation import ROOT, blocks
from warm import fresh, python

SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
criterion = nn.CrossEntropyLoss()
with torch.no_grad():
    for batch in range(30):
        criterion(model(torch.randn(8, 16)).float(), torch.zeros(8, dtype=torch.long))
print("accuracy")
"""
FIGURES = r"needs (\d+)% less memory; its outputs differ from fp32's by (\S+), and (\S+)% of the decisions"
TRAINS = """
import torch

torch.nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
"""


def compare(*options, folder, script, by=python):
    (folder / "evaluate.py").write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "COLUMNS": "80"}
    return by("-m", "ampwise", "compare", *options, "evaluate.py", cwd=folder, env=environment)


def test_forward_passes_are_compared(tmp_path):
    options = ["--precision", "fp32,bf16", "--steps", "12", "--repeat", "1", "--record", "r.json", "--report", "r.html"]
    done = compare("--eval", *options, "--json", folder=tmp_path, script=SCRIPT, by=fresh)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    fp32, bf16 = document["variants"]
    assert document["evaluates"] is True
    assert (fp32["output_error"], fp32["argmax_moved"]) == (0.0, 0.0)
    assert 1e-4 < bf16["output_error"] < 2e-2
    assert 0 <= bf16["argmax_moved"] < 0.2
    for row in (fp32, bf16):
        assert row["step_ms_median"] > 0
        assert row["samples_per_second"] > 0
        assert row["peak_tensor_bytes"] > 4 * (16 * 32 + 32 * 5)
        assert (row["final_loss"], row["verdict"]) == (None, None)
    recording = json.loads((tmp_path / "r.json").read_text())
    assert [len(run["steps"]) for run in recording["runs"]] == [12, 12]
    page = (tmp_path / "r.html").read_text()
    assert "argmax moved" in page
    assert "final loss" not in page
    shown = python("-m", "ampwise", "report", "r.json", cwd=tmp_path).stdout
    assert "output error" in shown
    assert "its outputs differ" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


def test_the_pages_script_is_compared_as_the_page_says(tmp_path):
    text = (ROOT / "docs/comparing.md").read_text()
    (script,) = blocks(text, "py")
    line = next(one for one in text.splitlines() if one.startswith("ampwise compare --eval"))
    done = compare(*line.split()[2:-1], folder=tmp_path, script=script)
    assert done.returncode == 0, done.stderr
    said = [re.findall(FIGURES, " ".join(one.split())) for one in (text, done.stdout)]
    (promised,), (measured,) = [[tuple(map(float, one)) for one in found] for found in said]
    assert measured == pytest.approx(promised, rel=0.3, abs=0.4)
    assert measured[1] == pytest.approx(promised[1], rel=0.3)


@pytest.mark.parametrize(
    ("options", "script", "words"),
    [
        ((), SCRIPT, "a script that only evaluates is compared with: ampwise compare --eval"),
        (("--eval",), TRAINS, "the script trains: --eval is for one that only evaluates"),
        (("--eval",), "import torch\n", "no forward pass found"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path, options, script, words):
    done = compare(*options, "--steps", "2", "--repeat", "1", folder=tmp_path, script=script)
    assert done.returncode == 3
    assert words in done.stderr
