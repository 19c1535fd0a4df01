"""The events that a plain loop gives rise to, whatever shape it has."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampwise.observe.events import (
    BackwardEnded,
    BackwardStarted,
    EventBus,
    ForwardEnded,
    ForwardStarted,
    StepOutcome,
    StepStarted,
)
from ampwise.observe.loop import LoopWatcher

KINDS = (ForwardStarted, ForwardEnded, BackwardStarted, BackwardEnded, StepStarted, StepOutcome)
SHORT = dict(zip(KINDS, "FfBbSs", strict=True))


@pytest.fixture
def watched():
    bus, events = EventBus(), []
    for kind in KINDS:
        bus.subscribe(kind, events.append)
    with LoopWatcher(bus):
        yield events


def story(events):
    return "".join(SHORT[type(event)] for event in events)


def net():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def test_a_plain_step(watched):
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(3, 2)).sum()
    loss.backward()
    opt.step()
    assert story(watched) == "FfBbSs"
    assert watched[0].module is model
    assert watched[0].args[0].shape == (3, 2)
    assert watched[2].roots[0] is loss
    assert watched[5] == StepOutcome(optimizer=opt)


def test_a_closure_runs_inside_its_step(watched):
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        loss = model(torch.ones(3, 2)).sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert story(watched) == "SFfBbs"


def test_without_an_optimizer_a_backward_pass_is_a_step(watched):
    model = net()
    model(torch.ones(3, 2)).sum().backward()
    assert story(watched) == "FfBbSs"
    assert watched[-1].optimizer is None


def test_reentrant_passes_and_recomputation_are_part_of_the_outer_pass(watched):
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(3, 2, requires_grad=True)
    for use_reentrant in (True, False):
        checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
    opt.step()
    assert story(watched) == "FfBbFfBbSs"


def test_an_optimizer_inside_backward_is_seen(watched):
    weight = nn.Parameter(torch.ones(2))
    opt = torch.optim.SGD([weight], lr=0.1)
    weight.register_post_accumulate_grad_hook(lambda _: opt.step())
    weight.sum().backward()
    assert story(watched) == "BSsb"


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another (Lookahead)."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)


class Chatty(torch.optim.SGD):
    """Its step calls its base class's."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("make", [Chatty, lambda params, lr: Wrapping(torch.optim.SGD(params, lr))])
def test_only_the_outermost_step_counts(watched, make):
    weight = nn.Parameter(torch.ones(2))
    opt = make([weight], lr=0.1)
    weight.sum().backward()
    opt.step()
    assert story(watched) == "BbSs"
    assert watched[-1].optimizer is opt


def test_an_optimizer_built_before_is_followed():
    weight = nn.Parameter(torch.ones(2))
    opt = torch.optim.SGD([weight], lr=0.1)
    bus, events = EventBus(), []
    for kind in KINDS:
        bus.subscribe(kind, events.append)
    with LoopWatcher(bus, has_optimizer=True):
        weight.sum().backward()
        opt.step()
    opt.step()
    assert story(events) == "BbSs"


def test_a_learning_rate_schedulers_wrapper_stays_usable_afterwards():
    weight = nn.Parameter(torch.ones(2))
    bus = EventBus()
    with LoopWatcher(bus):
        opt = torch.optim.SGD([weight], lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
    weight.sum().backward()
    opt.step()
    scheduler.step()
    assert torch.allclose(weight, torch.full((2,), 0.9))


def test_a_judge_says_how_a_step_went():
    bus, outcomes = EventBus(), []
    bus.subscribe(StepOutcome, outcomes.append)
    weight = nn.Parameter(torch.ones(2))
    with LoopWatcher(bus, judge=lambda optimizer: StepOutcome(optimizer=optimizer, stepped=False, scale=2.0)):
        torch.optim.SGD([weight], lr=0.1).step()
    assert (outcomes[0].stepped, outcomes[0].scale) == (False, 2.0)


def test_a_supplier_starts_when_wanted_and_stops_when_undone():
    bus, log = EventBus(), []

    def start():
        log.append("start")
        return lambda: log.append("stop")

    undo = bus.supply((ForwardStarted,), start)
    bus.subscribe(StepOutcome, log.append)
    assert log == []
    bus.subscribe(ForwardStarted, log.append)
    bus.subscribe(ForwardStarted, log.append)
    assert log == ["start"]
    undo()
    undo()
    assert log == ["start", "stop"]
    bus.subscribe(ForwardStarted, log.append)
    assert log == ["start", "stop"]


def steps_of(bus):
    told = []
    bus.subscribe(StepStarted, told.append)
    bus.subscribe(StepOutcome, told.append)
    return told


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_learning_rate_scheduler_hides_no_step(when):
    """It keeps the step of the optimizer it is built for."""
    bus, model = EventBus(), net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1) if when == "before" else None
    told = steps_of(bus)
    with LoopWatcher(bus, has_optimizer=True):
        schedule = schedule or torch.optim.lr_scheduler.StepLR(opt, 1)
        for _ in range(2):
            model(torch.ones(3, 2)).sum().backward()
            opt.step()
            schedule.step()
    opt.step()
    assert story(told) == "SsSs"
    assert {event.optimizer for event in told} == {opt}


def test_a_captured_step_that_raises_hides_no_other():
    bus, model = EventBus(), net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    step = opt.step
    told = steps_of(bus)
    with LoopWatcher(bus, has_optimizer=True):
        with pytest.raises(ZeroDivisionError):
            step(lambda: 1 / 0)
        step()
        opt.step()
    assert story(told) == "SSsSs"


def test_a_captured_step_of_an_optimizer_within_one_is_none_of_its_own():
    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            inner_step()
            return super().step(closure)

    bus, model = EventBus(), net()
    inner_step = torch.optim.SGD(model.parameters(), lr=0.1).step
    outer = Outer(model.parameters(), lr=0.1)
    told = steps_of(bus)
    with LoopWatcher(bus, has_optimizer=True):
        outer.step()
    assert story(told) == "Ss"
    assert told[1].optimizer is outer


def test_a_step_that_a_scaler_takes_through_a_captured_function_was_taken():
    """As Accelerate's optimizers call theirs."""
    bus, model = EventBus(), net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    opt.step = opt.step
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    told = steps_of(bus)
    with LoopWatcher(bus, has_optimizer=True):
        for factor in (1.0, float("inf")):
            scaler.scale((model(torch.ones(3, 2)) * factor).sum()).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
    assert [(bool(event.stepped), float(event.scale)) for event in told[1::2]] == [(True, 4.0), (False, 4.0)]


def test_nothing_of_torchs_hooks_stays():
    torch.optim.SGD(net().parameters(), lr=0.1)
    from torch.optim import optimizer

    with LoopWatcher(EventBus()):
        assert optimizer._global_optimizer_pre_hooks
        assert optimizer._global_optimizer_post_hooks
    assert not optimizer._global_optimizer_pre_hooks
    assert not optimizer._global_optimizer_post_hooks
