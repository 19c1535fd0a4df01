"""The callback in Lightning's Trainer: its loggers get the figures, its end the findings, whatever ended it."""

import csv
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ampwise._base.errors import UsageError
from ampwise.interpose.seam import intercepted
from ampwise.records.files import load_recording
from ampwise.records.run import RunEnd
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.leaves_behind("Lightning's own hooks of warnings")]
pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.loggers import CSVLogger  # noqa: E402 - after the package is known to be there
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from ampwise.integrations.lightning import AmpwiseCallback, AmpwisePrecision  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SCALE = 2.0**8


class Net(pl.LightningModule):
    def __init__(self, *, fails=None, bad_batch=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.fails, self.bad_batch = fails, bad_batch

    def training_step(self, batch, index):
        if self.fails is not None and index == 2:
            raise self.fails
        x, y = batch
        return nn.functional.mse_loss(self.net(x * 3e38 if index == self.bad_batch else x).float(), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(net, *callbacks, folder=None, plugin=None, **options):
    torch.manual_seed(1)
    batches = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=4)
    trainer = pl.Trainer(
        plugins=[plugin] if plugin else None,
        accelerator="cpu",
        max_epochs=1,
        logger=CSVLogger(folder, name="", version="") if folder else False,
        log_every_n_steps=2,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(net, batches)
    return trainer


def in_fp16():
    return AmpwisePrecision("fp16", loss_scale=DynamicLossScale(scale=SCALE))


def lightnings():
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=SCALE))


@pytest.mark.parametrize("plugin", [in_fp16, lightnings])
def test_the_loggers_get_the_figures(tmp_path, capsys, plugin):
    fit(Net(bad_batch=2), AmpwiseCallback(instruments=(), every=1), folder=tmp_path, plugin=plugin())
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "3", "5"]
    assert [float(row["ampwise/loss_scale"]) for row in rows] == [SCALE, SCALE / 2, SCALE / 2]
    assert [float(row["ampwise/skipped_steps"]) for row in rows] == [0, 1, 1]
    assert all(float(row["ampwise/gradient_norm"]) > 0 for row in rows)
    assert all(0 <= float(row["ampwise/underflow_share"]) <= 1 for row in rows)


def test_the_end_tells_and_saves(tmp_path, capsys):
    callback = AmpwiseCallback(instruments=("usage", "nonfinite"), save=tmp_path / "run.json")
    fit(Net(), callback, plugin=AmpwisePrecision("bf16"))
    run = load_recording(tmp_path / "run.json").runs[0]
    assert (run.end, run.precision, len(run.steps)) == (RunEnd.FINISHED, "bf16", 6)
    assert callback.telemetry.diagnosis.is_healthy
    said = capsys.readouterr().err
    assert "ampwise: 6 steps seen" in said
    assert "well: no loss, gradient or weight was infinite or NaN in 6 steps" in said
    assert intercepted() == ()


@pytest.mark.parametrize("error", [ValueError("no such thing"), KeyboardInterrupt()])
def test_what_ends_the_training_is_told_and_nothing_stays(tmp_path, capsys, error):
    callback = AmpwiseCallback(instruments=("usage",), save=tmp_path / "run.json")
    with pytest.raises((ValueError, SystemExit, KeyboardInterrupt)):
        fit(Net(fails=error), callback)
    run = load_recording(tmp_path / "run.json").runs[0]
    assert run.failure.kind == type(error).__name__
    assert len(run.steps) == 2
    assert intercepted() == ()
    assert not callback.telemetry.is_running


def test_every_instrument_watches_and_the_weights_are_those_without(tmp_path, capsys):
    plain, watched = Net(), Net()
    fit(plain, plugin=AmpwisePrecision("bf16"))
    callback = AmpwiseCallback()
    fit(watched, callback, plugin=AmpwisePrecision("bf16"))
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), watched.parameters(), strict=True))
    assert callback.telemetry.diagnosis is not None


def test_the_callback_counts_accumulated_steps(capsys):
    callback = AmpwiseCallback(instruments=())
    fit(Net(), callback, accumulate_grad_batches=2)
    assert "ampwise: 3 steps seen" in capsys.readouterr().err


def test_mistakes_are_told_when_it_is_made():
    with pytest.raises(UsageError, match="there is no such folder"):
        AmpwiseCallback(save="no/such/folder/run.json")
