import pytest
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks

from ampwise.instruments.nonfinite import NonFiniteWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.records.site import Phase
from known_answers import linear, randn


def training(make, *, dtype=torch.float32):
    model = nn.Sequential(linear(0, 4, 4), linear(1, 4, 2)).to(dtype)
    optimizer = make(model.parameters())
    x = randn(0, 3, 4).to(dtype)

    def step():
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def traced(*steps):
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), NonFiniteWatch(bus, trace=True) as watch:
        for step in steps:
            step()
    return watch.record()


def in_fp16(params):
    """Its eps is zero in fp16, and so is the square of a small gradient: 0 / 0."""
    return torch.optim.Adam(params, lr=1e-3, eps=1e-8, foreach=False)


def small_gradients(model):
    for one in model.parameters():
        one.register_hook(torch.zeros_like)


def test_a_fault_within_the_step_is_named_with_its_operator_and_line():
    model, _, step = training(in_fp16, dtype=torch.float16)
    small_gradients(model)
    first = traced(step, step).first
    assert (first.site.phase, first.site.op, first.parameter) == (Phase.OPTIMIZER, "aten.addcdiv_", "0.weight")
    assert first.site.file.endswith("test_step_again.py")
    assert (first.step, [one.num_nan for one in first.inputs]) == (0, [0, 0])


def test_making_the_step_again_leaves_everything_as_it_was():
    ends = []
    for run in (traced, lambda *steps: [step() for step in steps]):
        model, optimizer, step = training(in_fp16, dtype=torch.float16)
        small_gradients(model)
        run(step, step)
        ends.append([*model.parameters(), *(one for state in optimizer.state.values() for one in state.values())])
    torch.testing.assert_close(*ends, rtol=0, atol=0, equal_nan=True)
    assert [one for one in ends[0] if not one.dim()] == [2.0] * 2  # how often each parameter was stepped


def test_hooks_of_the_script_run_once_a_step():
    model, optimizer, step = training(in_fp16, dtype=torch.float16)
    small_gradients(model)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    traced(step, step)
    assert calls == ["before", "after"] * 2


def test_an_optimizer_of_the_scripts_own_is_watched_while_it_steps():
    class Mine(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self):
            for one in self.param_groups[0]["params"]:
                one.sub_(one.grad / (one.grad * 0))

    *_, step = training(Mine)
    first = traced(step).first
    assert (first.site.phase, first.site.op) == (Phase.OPTIMIZER, "aten.div")


def test_a_closure_is_watched_though_the_step_is_not():
    model, optimizer, _ = training(lambda params: torch.optim.SGD(params, lr=0.1))

    def closure():
        optimizer.zero_grad()
        loss = model[1](model[0](randn(0, 3, 4)) * 0 / 0).sum()
        loss.backward()
        return loss

    first = traced(lambda: optimizer.step(closure)).first
    assert first.site.op == "aten.div"


def test_what_a_hook_changes_after_the_step_is_blamed_on_no_operator_of_the_step():
    model, optimizer, step = training(lambda params: torch.optim.SGD(params, lr=0.1))

    @torch.no_grad()
    def spoil(*_):
        model[0].weight.mul_(torch.inf)

    optimizer.register_step_post_hook(spoil)
    record = traced(step)
    assert [(one.site.phase, one.site.op, one.parameter) for one in record.origins] == [
        (Phase.OPTIMIZER, None, "0.weight")
    ]


def test_after_a_step_that_raised_the_watch_goes_on():
    model, optimizer, step = training(lambda params: torch.optim.SGD(params, lr=0.1))

    def fails(*_):
        raise RuntimeError("no")

    def caught():
        handle = optimizer.register_step_pre_hook(fails)
        with pytest.raises(RuntimeError, match="no"):
            step()
        handle.remove()

    def spoilt():
        (model(randn(0, 3, 4)) * 0 / 0).sum().backward()
        optimizer.step()

    assert traced(caught, spoilt).first.site.op == "aten.div"


def test_the_guard_attaches_no_hook():
    _, _, step = training(lambda params: torch.optim.SGD(params, lr=0.1))
    seen = []

    def noted():
        seen.append(len(_global_forward_hooks))
        step()

    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), NonFiniteWatch(bus):
        noted()
        noted()
    assert seen == [0, 0]
