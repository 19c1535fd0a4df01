import pytest
import torch
from torch import nn

from ampwise.instruments.kept_graphs import KeptGraphs
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher

pytestmark = pytest.mark.usefixtures("alone")


def loop(bus, *, log, num_steps=7, model=None):
    model = model or nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total, losses, plain = torch.zeros(()), [], 0.0
    for _ in range(num_steps):
        loss = model(torch.ones(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        if log == "total":
            total = total + loss
        elif log == "list":
            losses.append(loss)
        elif log == "item":
            plain += loss.item()
        elif log == "detached":
            total = total + loss.detach()
            losses.append(loss.detach())
        optimizer.step()
    return total, losses, plain


def watch(**options):
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), KeptGraphs(bus) as watcher:
        loop(bus, **options)
    assert watcher.note is None
    return watcher


def test_a_sum_of_losses_keeps_every_graph():
    (kept,) = watch(log="total").kept()
    assert kept.name == "total"
    assert kept.file.endswith("test_kept_graphs.py")
    assert kept.is_growing
    assert len(kept.num_nodes) == 4
    assert not kept.is_of_other_model
    assert kept.leaf_bytes == 4 * (4 * 4 + 4)


def test_a_list_of_losses_does_too():
    (kept,) = watch(log="list").kept()
    assert kept.name == "losses[]"
    assert kept.is_growing


def test_numbers_and_detached_tensors_keep_nothing():
    assert watch(log="item").kept() == ()
    assert watch(log="detached").kept() == ()


def test_a_stale_loss_keeps_the_model_before_alive():
    old = nn.Linear(64, 4)
    loss = old(torch.ones(1, 64)).sum()
    del old
    kept = {one.name: one for one in watch(log="item").kept()}
    assert kept["loss"].is_of_other_model
    assert kept["loss"].leaf_bytes == 4 * (64 * 4 + 4)
    del loss


def test_models_that_take_turns_are_not_done_with():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (first, second)]
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), KeptGraphs(bus) as watcher:
        for _ in range(4):
            made = first(torch.ones(2, 4))
            second(made.detach()).sum().backward()
            optimizers[1].step()
            second(made).sum().backward()
            optimizers[0].step()
    assert watcher.kept() == ()


def test_tensors_trained_without_a_module_are_no_model():
    point = torch.ones(4, requires_grad=True)
    penalty = point.square().sum()
    assert watch(log="item").kept() == ()
    del penalty


def test_live_bytes_are_told_for_each_step_looked_at():
    ends = watch(log="item").step_ends
    assert [end.step for end in ends] == [2, 3, 4, 5]
    assert all(end.live_bytes > 0 for end in ends)


def test_a_fault_leaves_the_script_alone(monkeypatch):
    def broken():
        raise ValueError("no frames")

    monkeypatch.setattr("ampwise.instruments.kept_graphs._live_bytes", broken)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), KeptGraphs(bus) as watcher:
        loop(bus, log="total")
    assert watcher.note == "kept graphs not looked for: ValueError: no frames"
    assert watcher.kept() == ()
