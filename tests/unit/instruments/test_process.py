import mmap
import time

import pytest
import torch
from torch import nn

from ampwise.instruments import process
from ampwise.instruments.process import ProcessWatch, Usage, usage_now
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher


def train(*, num_steps=6, leave_out=(), loader=True, num_workers=0, before_step=lambda: None):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(2 * num_steps, 8))
    batches = [(torch.ones(2, 8),)] * num_steps
    if loader:
        batches = torch.utils.data.DataLoader(data, batch_size=2, num_workers=num_workers)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), ProcessWatch(bus, leave_out=leave_out) as watcher:
        for (x,) in batches:
            model(x).sum().backward()
            before_step()
            optimizer.step()
            optimizer.zero_grad()
    return watcher.record()


@pytest.fixture
def counted(monkeypatch):
    """A clock and counters that go on by a known amount each time they are asked."""
    state = {"now": 0}

    def usage():
        state["now"] += 1
        now = state["now"]
        return Usage(wall_ns=now * 10**6, user_s=now * 0.3, system_s=now * 0.1, minor_faults=7 * now, major_faults=now)

    monkeypatch.setattr(process, "usage_now", usage)


def test_steps_after_the_first_two_are_counted(counted):
    record = train(num_steps=6)
    assert record.num_steps == 4
    assert record.minor_faults == 4 * 7  # between one step's end and the next's one count each
    assert record.faults_per_step == 7
    assert record.major_faults == 4
    assert record.user_ms == pytest.approx(1200)
    assert record.system_share == pytest.approx(0.25)
    assert record.wall_ms == pytest.approx(4)


def test_steps_that_others_slow_are_left_out(counted):
    record = train(num_steps=6, leave_out=(3, 4))
    assert record.num_steps == 2
    assert record.minor_faults == 14


class Ticks:
    """A clock that goes on by one millisecond at each mark."""

    def __init__(self):
        self.now = 0

    def mark(self):
        self.now += 1
        return self.now

    def ms_between(self, start, end):
        return float(end - start)


def test_the_parts_add_up_to_the_step(monkeypatch):
    clock = Ticks()
    monkeypatch.setattr(process, "clock_of", lambda _: clock)
    record = train(num_steps=5, loader=False)
    parts = record.parts
    # marks of a step: forward's two, backward's two, the optimizer's two, and the step's own
    assert (parts.forward_ms, parts.backward_ms, parts.optimizer_ms) == (1, 1, 1)
    assert parts.data_ms == 0
    assert parts.total_ms == pytest.approx(7)
    assert record.is_device_time
    assert not record.has_loader


def test_waiting_for_the_loader_is_its_own_part(monkeypatch):
    moments = iter(range(10**6))
    monkeypatch.setattr(process.time, "perf_counter_ns", lambda: next(moments) * 10**6)
    record = train(num_steps=5)
    assert record.has_loader
    assert record.parts.data_ms == pytest.approx(1)
    assert not record.is_device_time


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_processes_that_load_are_counted(num_workers):
    assert train(num_steps=2, num_workers=num_workers).num_workers == num_workers


def test_a_run_too_short_has_no_figures():
    record = train(num_steps=2)
    assert record.num_steps == 0
    assert record.parts is None
    assert record.faults_per_step == 0.0


def test_page_faults_of_the_loop_are_seen():
    kept = []

    def touch():
        pages = mmap.mmap(-1, 64 * mmap.PAGESIZE)  # too little for a huge page
        for start in range(0, len(pages), mmap.PAGESIZE):
            pages[start] = 1
        kept.append(pages)

    assert train(num_steps=5, before_step=touch).faults_per_step >= 64


def test_usage_goes_on():
    before = usage_now()
    sum(range(10_000))
    now = usage_now()
    assert now.wall_ns > before.wall_ns
    assert now.user_s + now.system_s >= before.user_s + before.system_s
    assert time.perf_counter_ns() >= now.wall_ns
