"""``ampwise compare`` as a user types it, on a script that knows nothing of it."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ampwise.records.files import load_recording
from ampwise.records.run import RunEnd
from warm import fresh, python

SCRIPT = """
import sys
import torch
from torch import nn

print("hello from the script")
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
for step in range(100):
    x = torch.randn(8, 16)
    prediction = model(x)
    if prediction.dtype is torch.float16 and step == 2:
        raise ValueError("no <fp16> for me")
    loss = nn.functional.mse_loss(prediction.float(), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        torch.save(model.state_dict(), "best.pt")
"""


def ampwise(*arguments, folder, by=python):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder.parent)}
    return by("-m", "ampwise", *arguments, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """One comparison that several tests look at."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "best.pt").write_text("precious")
    options = ["--precision", "fp32,bf16,fp16", "--steps", "16", "--repeat", "1", "--project-steps", "1000", "--json"]
    done = ampwise(
        "compare", *options, "--record", "run.json", "--report", "report.html", "train.py", "0.01", folder=folder
    )
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(folder=folder, done=done, document=json.loads(done.stdout))


class TestCompared:
    def test_stdout_is_one_document_with_a_row_a_variant(self, compared):
        fp32, bf16, fp16 = compared.document["variants"]
        assert [row["precision"] for row in (fp32, bf16)] == ["fp32", "bf16"]
        assert fp32["ratio_time"] == fp32["ratio_memory"] == 1.0
        assert bf16["ratio_time"] > 0
        assert bf16["error"] is None
        assert bf16["projected_hours"] == pytest.approx(bf16["step_ms_median"] / 3_600)
        assert fp16["step_ms_median"] is None

    def test_bf16_follows_fp32_of_the_same_seed_but_is_not_it(self, compared):
        _, bf16, _ = compared.document["variants"]
        assert bf16["verdict"] == "within noise"
        recording = load_recording(compared.folder / "run.json")
        losses = {(run.variant, run.repeat): [step.loss for step in run.steps] for run in recording.runs}
        fp32, other_seed, bf16 = losses["fp32", 0], losses["fp32", 1], losses["bf16", 0]
        assert bf16 != fp32
        assert bf16 == pytest.approx(fp32, rel=0.05)
        assert other_seed != pytest.approx(fp32, rel=0.05)

    def test_the_peak_is_what_the_model_needs(self, compared):
        fp32, bf16, _ = compared.document["variants"]
        parameters = 16 * 32 + 32 + 32 + 1
        assert fp32["peak_tensor_bytes"] >= 4 * 4 * parameters  # parameters, gradients, AdamW's two moments
        assert fp32["peak_tensor_bytes"] < 8 * 4 * parameters
        assert bf16["peak_tensor_bytes"] != fp32["peak_tensor_bytes"]

    def test_a_variant_that_crashes_is_a_row_and_its_output_is_kept(self, compared):
        fp16 = compared.document["variants"][2]
        assert fp16["error"] == f"ValueError: no <fp16> for me (at {compared.folder / 'train.py'}:13)"
        (run,) = (run for run in load_recording(compared.folder / "run.json").runs if run.variant == "fp16")
        assert run.end is RunEnd.FAILED
        (kept,) = (note.removeprefix("what it printed is kept in ") for note in run.notes if "is kept in" in note)
        assert Path(kept, "stdout").read_text() == "hello from the script\n"
        assert "Traceback" in Path(kept, "stderr").read_text()

    def test_the_scripts_files_are_left_alone(self, compared):
        assert (compared.folder / "best.pt").read_text() == "precious"
        names = {path.name for path in compared.folder.iterdir()}
        assert names - {"__pycache__"} == {"train.py", "best.pt", "run.json", "report.html"}
        (note,) = load_recording(compared.folder / "run.json").notes
        assert note.startswith("what the script saved went to ")
        assert note.endswith(": best.pt")

    def test_the_scripts_output_is_not_shown(self, compared):
        assert "hello" not in compared.done.stdout + compared.done.stderr

    def test_each_run_made_the_steps_asked_for_and_one_was_sampled(self, compared):
        for run in load_recording(compared.folder / "run.json").runs:
            if run.variant != "fp16":
                assert (run.end, len(run.steps)) == (RunEnd.STOPPED, 16)
                assert [step.index for step in run.steps if step.time_ms is None] == [0, 5]
                assert {step.num_samples for step in run.steps} == {8}
                assert run.watching_ms > 0

    def test_the_record_is_rendered_again(self, compared):
        done = ampwise("report", "run.json", "-o", "again.html", folder=compared.folder)
        assert done.returncode == 0, done.stderr
        assert "bf16" in done.stdout
        (compared.folder / "again.html").unlink()

    def test_the_page_escapes_the_scripts_words(self, compared):
        page = (compared.folder / "report.html").read_text()
        assert "no &lt;fp16&gt; for me" in page
        assert "no <fp16> for me" not in page


def test_a_script_that_does_not_train_is_status_3(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    done = ampwise("compare", "train.py", folder=tmp_path, by=fresh)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("ampwise: no training step found: looked for a backward pass")


@pytest.mark.slow
def test_interrupted_in_a_terminal_it_shows_what_there_is(tmp_path):
    """A bar is drawn on the terminal; Ctrl-C after the first run keeps that run."""
    import signal

    (tmp_path / "train.py").write_text(SCRIPT)
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "ampwise", "compare", "--precision", "fp32,bf16", "--steps", "50", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path.parent)}
    environment |= {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [*command, "train.py", "0.01"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    drawn = b""
    while b"run 2 of 4: bf16" not in drawn:
        drawn += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=120)
    os.close(terminal)
    assert process.returncode == 130
    assert re.search(rb"run 1 of 4: fp32", drawn)
    fp32, bf16 = json.loads(stdout)["variants"]
    assert (fp32["error"], bf16["error"]) == (None, "not run")
