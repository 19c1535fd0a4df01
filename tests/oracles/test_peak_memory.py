"""torch's own MemTracker counts the same bytes."""

import gc

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from ampwise.instruments.memory import PeakMemory
from ampwise.observe.events import EventBus, StepOutcome

pytestmark = pytest.mark.usefixtures("alone")


class Transformer(nn.Module):
    def __init__(self, width=32, num_words=50):
        super().__init__()
        self.words = nn.Embedding(num_words, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, num_words)

    def forward(self, x):
        return self.head(self.layer(self.words(x)))


def mlp():
    layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(*layers), torch.randn(256, 64), torch.randint(0, 10, (256,))


def transformer():
    return Transformer(), torch.randint(0, 50, (4, 16)), torch.randint(0, 50, (4, 16))


def train_step(model, optimizer, x, y, dtype):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
    del logits
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("make", [mlp, transformer])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_peak_equals_mem_trackers(make, dtype, kind):
    gc.collect()
    bus = EventBus()
    with PeakMemory(bus, step=0) as before:
        bus.publish(StepOutcome(optimizer=None))
    model, x, y = make()
    optimizer = kind(model.parameters(), lr=1e-3)
    with PeakMemory(bus, step=1) as memory:
        for _ in range(2):
            train_step(model, optimizer, x, y, dtype)
            bus.publish(StepOutcome(optimizer=optimizer))
    tracker = MemTracker()
    tracker.track_external(model, optimizer, x, y)
    with tracker:
        train_step(model, optimizer, x, y, dtype)
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert memory.peak_tensor_bytes - before.peak_tensor_bytes == theirs
