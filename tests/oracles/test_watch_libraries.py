"""``ampwise.watch`` under Lightning's and Transformers' own loops: they are watched as any other, and left alone."""

import pytest
import torch

import ampwise

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaves_behind("what the libraries set when they are imported"),
]
INSTRUMENTS = ("layout", "usage", "nonfinite", "syncs", "casts")


def test_lightnings_trainer():
    lightning = pytest.importorskip("lightning.pytorch")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _index):
            return self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, precision="bf16-mixed", **quiet)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4))
    with ampwise.watch(instruments=INSTRUMENTS) as rec:
        trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
    run = rec.recording.runs[0]
    assert (len(run.steps), run.precision, run.usage.misuses) == (6, "bf16", ())
    assert any(call.dtype == "bf16" for call in run.casts.calls)
    assert ampwise.diagnose(rec).findings == () or all(
        one.severity.value != "error" for one in ampwise.diagnose(rec).findings
    )


def test_transformers_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels=None):
            return {"loss": (self.layer(x) - labels[:, None]).square().mean()}

    options = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=4,
        use_cpu=True,
        bf16=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [{"x": torch.randn(4), "labels": torch.zeros(())} for _ in range(24)]
    with ampwise.watch(instruments=INSTRUMENTS) as rec:
        transformers.Trainer(model=Model(), args=options, train_dataset=data).train()
    run = rec.recording.runs[0]
    assert (len(run.steps), run.precision, run.usage.misuses) == (6, "bf16", ())
    assert run.nonfinite.loss_steps == ()
