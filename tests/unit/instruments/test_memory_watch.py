import gc

import pytest
import torch
from torch import nn

from ampwise.compat.allocator import allocator_states
from ampwise.instruments.memory_watch import MemoryWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher


def watch(each_step, *, num_steps=6):
    gc.collect()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), MemoryWatch(bus, step=1) as watcher:
        for _ in range(num_steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            each_step()
    return watcher


def test_a_plain_loop_has_a_timeline_and_keeps_nothing():
    watcher = watch(lambda: None)
    record = watcher.record()
    assert record.step == 1
    assert record.peak is not None
    assert record.kept == ()
    assert record.cache_emptied == ()
    assert record.allocators == ()
    assert record.note is None
    assert [end.step for end in record.step_ends] == [1, 3, 4, 5]
    assert watcher.slowed_steps == {1, 2, 4, 5, 6}


def test_a_cache_emptied_in_the_loop_is_told_with_its_line():
    each_step = lambda: torch.cuda.empty_cache()  # noqa: E731, PLW0108
    (emptied,) = watch(each_step).record().cache_emptied
    assert emptied.count == 6
    assert emptied.in_loop
    assert emptied.site.line == each_step.__code__.co_firstlineno
    assert emptied.site.file.endswith("test_memory_watch.py")


def test_a_cache_emptied_before_the_loop_is_not_in_it():
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), MemoryWatch(bus) as watcher:
        torch.cuda.empty_cache()
    (emptied,) = watcher.record().cache_emptied
    assert (emptied.count, emptied.in_loop) == (1, False)


def block(size, state):
    return {"size": size, "state": state}


@pytest.fixture
def made_up_gpu(monkeypatch):
    """GPU 1 of two is used: 6 MiB allocated in two segments, of which one has a hole; a third segment is free."""
    mib = 2**20
    segments = [
        {"device": 1, "total_size": 4 * mib, "blocks": [block(3 * mib, "active_allocated"), block(mib, "inactive")]},
        {"device": 1, "total_size": 4 * mib, "blocks": [block(3 * mib, "active_allocated"), block(mib, "inactive")]},
        {"device": 1, "total_size": 2 * mib, "blocks": [block(2 * mib, "inactive")], "is_expandable": True},
        {"device": 0, "total_size": 90 * mib, "blocks": [block(90 * mib, "inactive")]},
    ]
    stats = {
        "active_bytes.all.current": 6 * mib,
        "inactive_split_bytes.all.current": 2 * mib,
        "requested_bytes.all.current": 5 * mib,
        "num_alloc_retries": 3,
        "num_ooms": 1,
    }
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: stats)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (7 * mib, 80 * mib))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 6 * mib)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 8 * mib)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 10 * mib)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda index: 12 * mib * index)
    return mib


def test_the_allocators_figures_are_read_for_each_gpu_used(made_up_gpu):
    mib = made_up_gpu
    (state,) = allocator_states()
    assert state.device == "cuda:1"
    assert (state.allocated_bytes, state.max_allocated_bytes) == (6 * mib, 8 * mib)
    assert (state.reserved_bytes, state.max_reserved_bytes) == (10 * mib, 12 * mib)
    assert (state.active_bytes, state.inactive_split_bytes, state.requested_bytes) == (6 * mib, 2 * mib, 5 * mib)
    assert (state.free_bytes, state.total_bytes) == (7 * mib, 80 * mib)
    assert (state.num_alloc_retries, state.num_ooms) == (3, 1)
    assert state.largest_free_block_bytes == 2 * mib
    assert state.releasable_bytes == 2 * mib
    assert state.is_expandable
    assert state.fragmentation == 0.2


def test_without_cuda_there_is_no_allocator():
    if not torch.cuda.is_initialized():
        assert allocator_states() == ()
