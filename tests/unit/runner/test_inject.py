"""Injected bf16 and fp32: the numbers of the same loop written by hand, and nothing left behind."""

import pytest
import torch
from torch import nn

from ampwise.observe.events import EventBus, ForwardStarted, StepOutcome
from ampwise.runner.inject import inject
from ampwise.runner.spec import Lists
from ampwise.runtime.hardware.device import Choice


def choose(precision):
    return Choice(precision=precision, reason="asked for", slow_factor=None, device="cpu")


def train(region=None, *, num_steps=6, optimizer=torch.optim.AdamW):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = optimizer(net.parameters(), lr=1e-2)
    x = torch.randn(32, 8)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(num_steps):
        opt.zero_grad()
        if region is None:
            loss = nn.functional.mse_loss(net(x), y)
        else:
            with region:
                loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in net.parameters()]


def equal(one, other):
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_bf16_is_the_hand_written_loop_bit_for_bit(optimizer):
    by_hand = train(torch.autocast("cpu", torch.bfloat16), optimizer=optimizer)
    with inject(choice=choose("bf16"), lists=Lists.STOCK) as injected:
        result = train(optimizer=optimizer)
    assert equal(result, by_hand)
    assert not equal(result, train(optimizer=optimizer))
    assert (injected.num_steps, injected.num_skipped, injected.left_alone) == (6, 0, None)


def test_fp32_changes_no_bit():
    plain = train()
    with inject(choice=choose("fp32")) as injected:
        assert equal(train(), plain)
    assert injected.num_steps == 6


def test_afterwards_everything_is_as_it_was():
    plain = train()
    with pytest.raises(TypeError), inject(choice=choose("bf16")):
        train(num_steps="many")
    assert equal(train(), plain)


def test_forward_events_are_published_to_whoever_subscribes_later():
    bus, modules, outcomes = EventBus(), [], []
    with inject(choice=choose("fp32"), bus=bus):
        train(num_steps=1)
        bus.subscribe(ForwardStarted, lambda event: modules.append(type(event.module).__name__))
        bus.subscribe(StepOutcome, outcomes.append)
        train(num_steps=2)
    assert modules == ["Sequential", "Sequential"]
    assert [outcome.stepped for outcome in outcomes] == [True, True]
