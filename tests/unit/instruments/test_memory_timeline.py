import gc
from functools import cache

import pytest
import torch
from torch import nn

from ampwise.instruments.memory import PeakMemory
from ampwise.instruments.memory_timeline import MemoryTimeline
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.records.memory import MemoryCategory
from ampwise.records.site import Phase

pytestmark = pytest.mark.usefixtures("alone")

BATCH, IN, HIDDEN, OUT = 16, 32, 64, 8


def train(make, *, low=False, num_steps=4, optimizer=torch.optim.AdamW, accumulate=1, model=None):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(IN, HIDDEN), nn.Sigmoid(), nn.Linear(HIDDEN, OUT))
    optimizer = optimizer(model.parameters(), lr=0.1)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), make(bus) as watcher:
        for _ in range(num_steps):
            for _ in range(accumulate):
                x = torch.randn(BATCH, IN)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                    loss = model(x).float().pow(2).sum()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return watcher


@cache
def timeline(**options):
    gc.collect()
    record = train(lambda bus: MemoryTimeline(bus, step=2), **options).record()
    assert record.note is None
    return record


@pytest.mark.parametrize(
    ("low", "optimizer", "accumulate"),
    [(False, torch.optim.AdamW, 1), (True, torch.optim.SGD, 2), (True, torch.optim.AdamW, 1)],
)
def test_the_peak_is_the_one_counted_without_owners(low, optimizer, accumulate):
    options = {"low": low, "optimizer": optimizer, "accumulate": accumulate}
    record = timeline(**options)
    gc.collect()
    assert record.peak.total_bytes == train(lambda bus: PeakMemory(bus, step=2), **options).peak_tensor_bytes


@pytest.mark.parametrize("low", [False, True])
def test_the_categories_add_up_at_every_moment(low):
    record = timeline(low=low)
    assert len(record.points) > 10
    for point in record.points:
        assert sum(part.bytes for part in point.categories) == point.total_bytes
        assert all(part.bytes >= 0 for part in point.categories)
    assert record.peak.total_bytes == max(point.total_bytes for point in record.points)
    assert sum(owner.bytes for owner in record.owners) == record.peak.total_bytes


def weights():
    return 4 * (IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT)


def at(record, phase):
    """The largest moment of a phase."""
    return max((point for point in record.points if point.phase is phase), key=lambda point: point.total_bytes)


def test_weights_gradients_and_states_are_told_apart():
    end = at(timeline(), Phase.OPTIMIZER)
    assert end.bytes_of(MemoryCategory.GRADIENT) == weights()
    assert end.bytes_of(MemoryCategory.OPTIMIZER_STATE) == 2 * weights() + 4 * 4
    assert end.bytes_of(MemoryCategory.PARAMETER) >= weights()


def test_what_backward_waits_for_is_an_activation():
    record = timeline()
    before = max(point.bytes_of(MemoryCategory.ACTIVATION) for point in record.points)
    # the hidden layer's sum and sigmoid, the output, its square root's operand is the output itself, the loss
    hidden, output = 4 * BATCH * HIDDEN, 4 * BATCH * OUT
    assert before in {hidden + output + 4, 2 * hidden + output + 4}
    owners = {owner.site.module for owner in record.owners if owner.category is MemoryCategory.ACTIVATION}
    assert owners <= {"0", "1", "2", None}


def test_copies_in_low_precision_are_casts():
    def most(record):
        return max(point.bytes_of(MemoryCategory.CAST) for point in record.points)

    assert most(timeline()) == 0
    low = most(timeline(low=True))
    # both weights' and biases' copies, the input's, and the output's in fp32
    assert low == weights() // 2 + 2 * BATCH * IN + 4 * BATCH * OUT


def test_owners_are_named_by_module():
    owners = {(owner.category, owner.site.module): owner for owner in timeline().owners}
    first = owners[MemoryCategory.PARAMETER, "0"]
    assert first.bytes == 4 * (IN * HIDDEN + HIDDEN)
    assert first.num_storages == 2
    assert owners[MemoryCategory.GRADIENT, "2"].bytes == 4 * (HIDDEN * OUT + OUT)
    assert owners[MemoryCategory.OPTIMIZER_STATE, "0"].bytes == 2 * first.bytes + 2 * 4


def test_the_data_is_no_activation():
    data = [owner for owner in timeline().owners if owner.site.op == "aten.randn"]
    assert {owner.category for owner in data} <= {MemoryCategory.OTHER}


def test_buffers_count_as_parameters():
    model = nn.Sequential(nn.Linear(IN, HIDDEN), nn.BatchNorm1d(HIDDEN))
    record = timeline(model=model)
    expected = 4 * (IN * HIDDEN + HIDDEN) + 4 * 4 * HIDDEN + 8
    assert at(record, Phase.FORWARD).bytes_of(MemoryCategory.PARAMETER) >= expected


def test_a_cast_cache_that_outlives_the_step_is_seen():
    model = nn.Linear(IN, OUT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bus = EventBus()
    region = torch.autocast("cpu", dtype=torch.bfloat16)
    with LoopWatcher(bus, has_optimizer=True), MemoryTimeline(bus, step=1) as watcher:
        for index in range(3):
            if index == 1:
                region.__enter__()
            model(torch.ones(BATCH, IN)).float().sum().backward()
            optimizer.step()
    region.__exit__(None, None, None)
    assert watcher.cached_cast_bytes == 2 * (IN * OUT + OUT)


def test_a_region_left_within_the_step_leaves_no_casts():
    assert train(lambda bus: MemoryTimeline(bus, step=2), low=True).cached_cast_bytes == 0


def test_a_run_that_ends_too_early_says_so():
    record = train(lambda bus: MemoryTimeline(bus, step=9)).record()
    assert record.step is None
    assert record.points == ()
    assert record.note == "no timeline: the run ended before step 10 did"


def test_a_fault_of_the_count_leaves_the_script_alone(monkeypatch):
    def broken(self, *_):
        raise ValueError("no such storage")

    monkeypatch.setattr(MemoryTimeline, "_note", broken)
    record = train(lambda bus: MemoryTimeline(bus, step=2)).record()
    assert record.step is None
    assert record.note == "no timeline: ValueError: no such storage"


def test_a_script_that_raises_is_left_without_the_mode():
    bus = EventBus()
    with pytest.raises(KeyError), LoopWatcher(bus), MemoryTimeline(bus, step=0):
        raise KeyError
    assert torch._C._len_torch_dispatch_stack() == 0


def test_nothing_is_kept_alive():
    import weakref

    born = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(IN, OUT)

        def forward(self, x):
            y = self.inner(x)
            born.append(weakref.ref(y.untyped_storage()))
            return y

    timeline(model=Watched())
    gc.collect()
    assert not any(reference() for reference in born[:-1])
