"""The callback in Transformers' own Trainer: figures in its logs, findings at its end, plans on its model."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from ampwise._base.errors import UsageError
from ampwise.interpose.seam import intercepted
from ampwise.plan.plan import Plan, Rule
from ampwise.records.files import load_recording
from ampwise.records.run import RunEnd

pytestmark = pytest.mark.filterwarnings("ignore")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from ampwise.integrations.transformers import AmpwiseCallback  # noqa: E402 - after the package is known to be there

RAISES = """
import torch, transformers
from ampwise.integrations.transformers import AmpwiseCallback

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = torch.nn.Linear(4, 1), 0
    def forward(self, x, y):
        self.calls += 1
        if self.calls == 3:
            raise ValueError("no such thing")
        return {"loss": torch.nn.functional.mse_loss(self.body(x), y)}

arguments = transformers.TrainingArguments(
    output_dir=".", use_cpu=True, max_steps=6, save_strategy="no", report_to=[], disable_tqdm=True
)
data = [{"x": torch.ones(4), "y": torch.ones(1)}] * 12
callback = AmpwiseCallback(instruments=("usage",), save="run.json")
transformers.Trainer(Net(), arguments, train_dataset=data, callbacks=[callback]).train()
"""
MIXED = Plan(default="bf16", rules=(Rule(module="head", compute="fp32"),))


class Net(nn.Module):
    def __init__(self, *, fails=None):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.fails, self.num_calls, self.dtypes = fails, 0, []

    def forward(self, x, y):
        self.num_calls += 1
        if self.fails is not None and self.num_calls == 3:
            raise self.fails
        hidden = self.body(x)
        self.dtypes.append(hidden.dtype)
        out = self.head(torch.relu(hidden))
        return {"loss": nn.functional.mse_loss(out.float(), y), "out": out}


class Logger(transformers.TrainerCallback):
    """Stands for one of the trackers that the Trainer brings along."""

    def __init__(self):
        self.seen = []

    def on_log(self, *_, logs=None, **__):
        self.seen.append(dict(logs))


def trainer_of(net, folder, *callbacks, max_steps=6, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=max_steps,
        logging_steps=2,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    torch.manual_seed(1)
    data = [{"x": torch.randn(4), "y": torch.randn(1)} for _ in range(12)]
    return transformers.Trainer(net, arguments, train_dataset=data, callbacks=list(callbacks))


def losses(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_the_logs_get_the_figures_and_so_do_loggers_behind(tmp_path, capsys):
    logger = Logger()
    trainer = trainer_of(Net(), tmp_path, logger)
    with AmpwiseCallback(instruments=(), every=1).on(trainer):
        trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 3
    # the Trainer's norm is before it clips to 1, ours is what the optimizer gets
    assert [min(row["grad_norm"], 1.0) for row in rows] == pytest.approx(
        [row["ampwise/gradient_norm"] for row in rows], rel=1e-4
    )
    assert [row["ampwise/gradient_norm"] for row in logger.seen if "loss" in row] == [
        row["ampwise/gradient_norm"] for row in rows
    ]
    assert not any("ampwise/gradient_norm" in row for row in trainer.state.log_history if "train_loss" in row)
    assert not any(isinstance(one, AmpwiseCallback) for one in trainer.callback_handler.callbacks)


def test_a_scaler_of_the_trainers_is_told(tmp_path, capsys):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    trainer = trainer_of(Net(), tmp_path, max_grad_norm=0)
    trainer.accelerator.scaler = scaler  # on a CPU it makes none
    with AmpwiseCallback(instruments=("usage",), every=1).on(trainer) as callback:
        trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert [(row["ampwise/loss_scale"], row["ampwise/skipped_steps"]) for row in rows] == [(1024.0, 0.0)] * 3
    assert {"ampwise/underflow_share", "ampwise/gradient_norm"} <= set(rows[0])
    assert callback.telemetry.diagnosis is not None


def test_the_end_tells_and_saves(tmp_path, capsys):
    callback = AmpwiseCallback(instruments=("usage", "nonfinite"), save=tmp_path / "run.json")
    trainer_of(Net(), tmp_path, callback, bf16=True).train()
    run = load_recording(tmp_path / "run.json").runs[0]
    assert (run.end, run.precision, len(run.steps)) == (RunEnd.FINISHED, "bf16", 6)
    said = capsys.readouterr().err
    assert "ampwise: 6 steps seen" in said
    assert "well: no loss, gradient or weight was infinite or NaN in 6 steps" in said
    assert intercepted() == ()


@pytest.mark.parametrize("error", [ValueError("no such thing"), KeyboardInterrupt()])
def test_what_ends_the_training_is_told_and_nothing_stays(tmp_path, capsys, error):
    net = Net(fails=error)
    trainer = trainer_of(net, tmp_path)
    callback = AmpwiseCallback(instruments=("usage",), save=tmp_path / "run.json", plan=MIXED)
    with pytest.raises(type(error)), callback.on(trainer):
        trainer.train()
    run = load_recording(tmp_path / "run.json").runs[0]
    assert (run.failure.kind, len(run.steps)) == (type(error).__name__, 2)
    assert intercepted() == ()
    assert [name for name, one in net.named_modules() if "forward" in vars(one)] == []


def test_a_plan_holds_while_it_trains(tmp_path, capsys):
    net, twin = Net(), Net()
    trainer = trainer_of(net, tmp_path / "a")
    with AmpwiseCallback(plan=MIXED, instruments=()).on(trainer):
        trainer.train()
    assert set(net.dtypes) == {torch.bfloat16}
    net(torch.ones(1, 4), torch.ones(1, 1))
    assert net.dtypes[-1] is torch.float32, "the plan is off again"
    plain = trainer_of(twin, tmp_path / "b")
    plain.train()
    assert losses(trainer) != losses(plain)
    assert losses(trainer) == pytest.approx(losses(plain), rel=0.05)


def test_watching_changes_no_weight(tmp_path, capsys):
    plain, watched = Net(), Net()
    trainer_of(plain, tmp_path / "a", bf16=True).train()
    trainer_of(watched, tmp_path / "b", AmpwiseCallback(), bf16=True).train()
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), watched.parameters(), strict=True))


def test_after_an_exception_without_the_block_close_tells_and_detaches(tmp_path, capsys):
    callback = AmpwiseCallback(instruments=("usage",), plan=MIXED, save=tmp_path / "run.json")
    net = Net(fails=ValueError("no such thing"))
    trainer = trainer_of(net, tmp_path, callback)
    try:
        trainer.train()
    except ValueError:
        assert callback.telemetry.is_running
        callback.close()
    assert "ampwise: 2 steps seen" in capsys.readouterr().err
    assert load_recording(tmp_path / "run.json").runs[0].failure.kind == "ValueError"
    assert intercepted() == ()
    assert "forward" not in vars(net.head)
    callback.close()
    assert capsys.readouterr().err == ""


def test_the_next_training_tells_of_the_one_that_an_exception_ended(tmp_path, capsys, monkeypatch):
    error = ValueError("no such thing")
    callback = AmpwiseCallback(instruments=("usage",))
    trainer = trainer_of(Net(fails=error), tmp_path, callback)
    with pytest.raises(ValueError):
        trainer.train()
    monkeypatch.setattr(sys, "last_value", error, raising=False)  # as a notebook does
    trainer.model.fails = None
    trainer.train()
    said = capsys.readouterr().err
    assert said.index("ampwise: 2 steps seen") < said.index("ampwise: 6 steps seen")
    assert "no such thing" in said
    assert intercepted() == ()


def test_the_end_of_the_process_tells_of_an_exception(tmp_path):
    (tmp_path / "train.py").write_text(RAISES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.index("ValueError: no such thing") < done.stderr.index("ampwise: 2 steps seen")
    assert load_recording(tmp_path / "run.json").runs[0].failure.message == "no such thing"


def test_a_plan_in_fp16_is_refused_without_a_loss_scale(tmp_path):
    trainer = trainer_of(Net(), tmp_path)
    with pytest.raises(UsageError, match="vanish without a loss scale"), AmpwiseCallback(plan="fp16").on(trainer):
        trainer.train()


def test_mistakes_are_told_when_it_is_made():
    with pytest.raises(UsageError, match="did you mean"):
        AmpwiseCallback(plan="fp16-saef")


def test_the_trainers_bf16_is_compared_with_fp32(tmp_path):
    callback = AmpwiseCallback(instruments=("against_fp32",), save=tmp_path / "run.json")
    trainer_of(Net(), tmp_path, callback, bf16=True, max_steps=10).train()
    compared = load_recording(tmp_path / "run.json").runs[0].against_fp32
    assert (compared.note, compared.format) == (None, "bf16")
    assert [one.module for one in compared.modules] == ["body", "head", ""]
    assert all(0 < one.relative < 0.1 for one in compared.modules)
