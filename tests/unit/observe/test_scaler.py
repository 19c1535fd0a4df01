"""What a loop with its own gradient scaler gives rise to: the losses it means, its scales, the steps it skips."""

import pytest
import torch

import ampwise
from ampwise.observe.events import BackwardStarted, EventBus, StepOutcome, StepStarted
from ampwise.observe.loop import LoopWatcher

INF = float("inf")


@pytest.fixture
def seen():
    bus, events = EventBus(), []
    for kind in (BackwardStarted, StepStarted, StepOutcome):
        bus.subscribe(kind, events.append)
    with LoopWatcher(bus):
        yield events


def outcomes(events):
    return [event for event in events if isinstance(event, StepOutcome)]


def train(scaler, optimizer, weight, *factors):
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, ampwise.GradScaler])
def test_a_skipped_step_is_told_with_its_scale(seen, kind):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    train(kind("cpu", init_scale=1024.0), optimizer, weight, 1.0, INF, 1.0)
    assert [(bool(one.stepped), float(one.scale)) for one in outcomes(seen)] == [
        (True, 1024.0),
        (False, 1024.0),
        (True, 512.0),
    ]
    assert all(one.optimizer is optimizer for one in outcomes(seen))
    assert sum(isinstance(event, StepStarted) for event in seen) == 3


def test_losses_are_those_before_scaling(seen):
    weight = torch.nn.Parameter(torch.ones(2))
    train(torch.amp.GradScaler("cpu", init_scale=1024.0), torch.optim.SGD([weight], lr=0.0), weight, 3.0)
    (backward,) = [event for event in seen if isinstance(event, BackwardStarted)]
    assert [float(root) for root in backward.roots] == [6.0]


def test_a_loss_that_no_scaler_saw_stays_itself(seen):
    weight = torch.nn.Parameter(torch.ones(2))
    torch.amp.GradScaler("cpu").scale(weight.sum())
    loss = weight.sum()
    loss.backward()
    assert seen[0].roots[0] is loss


def test_a_fused_optimizer_skips_by_itself(seen):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=True)
    train(torch.amp.GradScaler("cpu", init_scale=8.0), optimizer, weight, INF, 1.0)
    assert [(bool(one.stepped), float(one.scale)) for one in outcomes(seen)] == [(False, 8.0), (True, 4.0)]


def test_a_disabled_scaler_says_nothing(seen):
    weight = torch.nn.Parameter(torch.ones(2))
    train(torch.amp.GradScaler("cpu", enabled=False), torch.optim.SGD([weight], lr=0.1), weight, 1.0)
    assert [(one.stepped, one.scale) for one in outcomes(seen)] == [(True, None)]


def test_an_optimizer_that_calls_the_scaler_in_its_step_is_one_step(seen):
    weight = torch.nn.Parameter(torch.ones(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    inner = torch.optim.SGD([weight], lr=0.1)

    class Wrapper(torch.optim.Optimizer):
        def __init__(self):
            super().__init__([weight], {})

        def step(self):
            scaler.step(inner)
            scaler.update()

    outer = Wrapper()
    for factor in (1.0, INF):
        outer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        outer.step()
    assert [(bool(one.stepped), one.optimizer) for one in outcomes(seen)] == [(True, outer), (False, outer)]
