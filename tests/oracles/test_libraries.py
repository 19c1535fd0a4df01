"""Lightning and Accelerate take ``GradScaler`` for torch's."""

import pytest
import torch

from ampwise import GradScaler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaves_behind("what the libraries set when they are imported"),
]


def test_lightning_trains_with_it():
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _index):
            return self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    scaler = GradScaler("cpu", init_scale=1024.0)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        gradient_clip_val=0.5,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
        **quiet,
    )
    data = torch.utils.data.TensorDataset(torch.randn(16, 4))
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
    assert scaler.last_step.stepped
    assert scaler._get_growth_tracker() == 4


def test_accelerate_sees_a_skipped_step():
    accelerate = pytest.importorskip("accelerate")
    from accelerate.optimizer import AcceleratedOptimizer

    accelerate.Accelerator(cpu=True)
    weight, scaler = torch.nn.Parameter(torch.ones(2)), GradScaler("cpu")
    optimizer = AcceleratedOptimizer(torch.optim.SGD([weight], lr=1.0), scaler=scaler)
    for factor, skipped in ((float("inf"), True), (1.0, False)):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        optimizer.step()
        assert optimizer.step_was_skipped == scaler.last_step.skipped == skipped
    assert weight.tolist() == [0.0, 0.0]
