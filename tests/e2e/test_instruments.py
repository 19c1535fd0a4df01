"""Every instrument at once, in a measured process: each fills its part of the record, and leaves the training alone."""

import pytest

from ampwise.records.files import from_json, to_json
from ampwise.records.run import RunEnd, RunRecord
from ampwise.runner.child import run_child
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec

INSTRUMENTS = ("syncs", "casts", "memory", "kernels", "process")
SCRIPT = """
import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, batch):
        hidden = checkpoint(lambda x: torch.relu(self.first(x)), batch["x"], use_reentrant=False)
        return {"logits": self.second(hidden), "nothing": None}

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(160, 8)), batch_size=8)
total = 0
for (x,) in loader:
    loss = model({"x": x})["logits"].pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss
    print(loss.item())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("instruments")
    (folder / "train.py").write_text(SCRIPT)
    return folder


@pytest.fixture(scope="module")
def record(folder):
    spec = LaunchSpec(precision="bf16", stop_after=18, instruments=INSTRUMENTS)
    return run_child(Target(path=str(folder / "train.py")), spec)


def test_each_fills_its_part_and_none_complains(record):
    assert record.end is RunEnd.STOPPED
    assert record.syncs.note is None
    assert record.casts.note is None
    assert record.memory.note is None
    assert record.kernels.note is None


def test_they_watch_steps_of_their_own(record):
    steps = [*record.syncs.steps, *record.casts.steps, record.memory.step, record.kernels.step]
    assert len(set(steps)) == len(steps) == 6
    untimed = {step.index for step in record.steps if step.time_ms is None}
    assert untimed >= set(steps)
    assert len(untimed) < len(record.steps)


def test_they_find_what_is_there(record):
    assert [(place.call, place.count) for place in record.syncs.places] == [(".item()", 2)]
    assert {cast.site.module for cast in record.casts.casts} >= {"first", "second"}
    assert [kept.name for kept in record.memory.kept] == ["total"]
    assert {product.dtype for product in record.kernels.products} == {"bf16"}
    assert record.process.has_loader
    assert record.process.num_steps == 5  # of 18, the first 13 are those of other instruments


def test_the_record_survives_its_file(record):
    assert from_json(to_json(record), RunRecord) == record


def test_losses_are_those_of_a_run_that_is_not_watched(record, folder):
    plain = run_child(Target(path=str(folder / "train.py")), LaunchSpec(precision="bf16", stop_after=18))
    assert [step.loss for step in plain.steps] == [step.loss for step in record.steps]
