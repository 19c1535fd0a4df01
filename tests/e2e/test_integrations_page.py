"""Every section of the page of integrations runs alone, against the real libraries."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import ampwise
from ampwise.interpose.seam import intercepted
from ampwise.records.files import load_recording
from documentation import ROOT, blocks, sections, stand_ins

pytestmark = pytest.mark.filterwarnings("ignore")
SECTIONS = dict(sections(ROOT / "docs/integrations.md"))
TRAINER = """
import torch, transformers

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 1)
    def forward(self, x, y):
        out = self.body(x)
        print(out.dtype)
        return {"loss": torch.nn.functional.mse_loss(out.float(), y)}

arguments = transformers.TrainingArguments(
    output_dir=".", use_cpu=True, max_steps=4, save_strategy="no", report_to=[], disable_tqdm=True
)
data = [{"x": torch.ones(4), "y": torch.ones(1)}] * 12
transformers.Trainer(Net(), arguments, train_dataset=data).train()
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert intercepted() == ()


@pytest.fixture
def _fresh_accelerator():
    """Accelerate's state is one for the process; Transformers' Trainer has one, too."""
    state = pytest.importorskip("accelerate.state").AcceleratorState
    state._reset_state(reset_partial_state=True)
    yield
    state._reset_state(reset_partial_state=True)


def run(heading, **names):
    names = {**stand_ins(), **names}
    for code in blocks(SECTIONS[heading], "python"):
        exec(compile(code, heading, "exec"), names)
    return names


def batches():
    return torch.utils.data.DataLoader(stand_ins()["loader"], batch_size=None)


def test_no_section_is_lost():
    libraries = "lightning transformers accelerate jupyter tensorboard"
    features = "compile checkpointing average evaluating"
    headings = " ".join(SECTIONS).lower()
    assert [word for word in f"{libraries} {features}".split() if word not in headings] == []


def test_lightning():
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.dtypes = nn.Linear(4, 3), set()

        def training_step(self, batch, _):
            x, y = batch
            out = self.layer(x)
            self.dtypes.add(out.dtype)
            return nn.functional.cross_entropy(out, y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Net()
    names = run("Lightning", model=model, loader=batches())
    chosen = names["trainer"].precision_plugin.loop.choice.precision
    assert model.dtypes == {{"bf16": torch.bfloat16, "fp16": torch.float16}.get(chosen, torch.float32)}
    assert len(load_recording("run.json").runs[0].steps) == 8


@pytest.mark.usefixtures("_fresh_accelerator")
def test_transformers(capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=16, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    arguments = transformers.TrainingArguments(
        output_dir=".", use_cpu=True, max_steps=3, save_strategy="no", report_to=[], disable_tqdm=True
    )
    run(
        "Transformers",
        model=transformers.T5ForConditionalGeneration(config),
        arguments=arguments,
        data=[{"input_ids": [1, 2, 3], "labels": [3, 2, 1]}] * 12,
    )
    assert len(load_recording("run.json").runs[0].steps) == 3
    assert "ampwise: 3 steps seen; the recording is in run.json" in capsys.readouterr().err


@pytest.mark.slow
def test_a_script_with_a_trainer_runs_unchanged(tmp_path):
    (command,) = (line for line in blocks(SECTIONS["Transformers"], "")[0].splitlines())
    (tmp_path / "train_hf.py").write_text(TRAINER)
    words = [sys.executable, "-m", *command.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) >= {"torch.bfloat16"}
    assert "ampwise: bf16 on cpu: asked for" in done.stderr
    assert "ampwise: 4 steps; median" in done.stderr


@pytest.mark.usefixtures("_fresh_accelerator")
def test_accelerate():
    names = run("Accelerate", loader=batches())
    before = [one.detach().clone() for one in names["model"].parameters()]
    for x, y in names["loader"]:
        names["accelerator"].backward(names["criterion"](names["model"](x), y))
        names["optimizer"].step()
        names["optimizer"].zero_grad()
    assert not any(one.equal(other) for one, other in zip(names["model"].parameters(), before, strict=True))
    assert names["accelerator"].scaler.get_scale() > 0


def test_jupyter(monkeypatch, tmp_path):
    shells = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda page: shown.append(page.data))

    class Quiet(shells.InteractiveShell):
        def init_history(self):
            self.history_manager = None

    shell = Quiet(history_length=0)
    shell.user_ns.update(stand_ins(), itertools=itertools)
    for cell in blocks(SECTIONS["Jupyter"], ""):
        assert shell.run_cell(cell).success
    shell.run_line_magic("unload_ext", "ampwise")
    assert "no loss, gradient or weight was infinite or NaN in 8 steps" in shown[0]
    assert len(load_recording("run.json").runs[0].steps) == 8


@pytest.mark.parametrize("heading", ["torch.compile", "Activation checkpointing", "An average of the weights"])
def test_a_feature_of_torch(heading):
    start = stand_ins()["model"]
    names = run(heading)
    model = getattr(names["model"], "_orig_mod", names["model"])
    assert not any(one.equal(other) for one, other in zip(model.parameters(), start.parameters(), strict=True))
    if "average" in names:
        assert names["average"].n_averaged == 8


def test_evaluating():
    names = run("Evaluating")
    assert 0 <= int(names["right"]) <= 48
    assert names["model"].training


def test_tensorboard(tmp_path):
    names = stand_ins()
    with ampwise.watch(names["model"], names["optimizer"], instruments=("usage",)) as recording:
        for x, y in names["loader"]:
            names["criterion"](names["model"](x), y).backward()
            names["optimizer"].step()
    recording.save("run.json")
    (command,) = (one for one in SECTIONS["TensorBoard"].split("`") if one.startswith("ampwise report"))
    done = subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "LOGDIR").rglob("events.out.tfevents*"))
