import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwise.interpose.internal import internal
from ampwise.observe.events import EventBus, StepOutcome
from ampwise.observe.operators import OperatorSampler


class Names:
    """Notes the step and name of every operator."""

    def __init__(self):
        self.seen = []
        self.sampler = None

    def around(self, operator, proceed, args, kwargs):
        self.seen.append((self.sampler.step, operator.name))
        return proceed(*args, **kwargs)


def sample(steps, optimizers, *, work=lambda: torch.ones(1).add(1)):
    bus, names = EventBus(), Names()
    names.sampler = OperatorSampler(bus, names, steps=steps)
    with names.sampler:
        for optimizer in optimizers:
            work()
            bus.publish(StepOutcome(optimizer=optimizer))
    return names


def test_only_the_steps_asked_for_are_shown():
    names = sample({1, 3}, [None] * 5)
    assert {step for step, name in names.seen if name == "aten.add"} == {1, 3}
    assert names.sampler.seen_steps == (1, 3)
    assert names.sampler.cost_ms > 0


def test_a_loop_with_several_optimizers_is_watched_for_a_round():
    names = sample({4}, ["critic", "critic", "generator"] * 3)
    assert names.sampler.seen_steps == (4, 5)


def test_an_optimizer_that_never_steps_again_is_waited_for_ten_steps_only():
    names = sample({1}, ["warm up"] + ["main"] * 20)
    assert names.sampler.seen_steps == tuple(range(1, 11))


def test_what_stands_around_an_operator_is_not_compiled_where_a_graph_broke():
    is_traced = []

    class Traced:
        def around(self, _, proceed, args, kwargs):
            is_traced.append(torch.compiler.is_dynamo_compiling())
            return proceed(*args, **kwargs)

    @torch.compile(backend="eager")
    def work():
        for _ in range(2):  # a break within a loop: the whole function runs as plain Python, and what it calls compiles
            torch._dynamo.graph_break()
            torch.ones(1).add(1)

    torch.compiler.reset()
    bus = EventBus()
    with OperatorSampler(bus, Traced(), steps=None):
        work()
    assert is_traced
    assert not any(is_traced)


def test_our_own_operators_are_not_shown():
    def work():
        with internal():
            torch.ones(1).add(1)

    assert sample(None, [None], work=work).seen == []


class Own(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_scripts_own_is_not_disturbed():
    bus, names = EventBus(), Names()
    names.sampler = OperatorSampler(bus, names, steps={1})
    with names.sampler:
        with Own():
            bus.publish(StepOutcome(optimizer=None))
            torch.ones(1)
        assert names.sampler.note == "not watched: the script's own dispatch mode is on"
    assert names.seen == []


def test_a_mode_entered_within_the_step_is_left_first():
    bus, names = EventBus(), Names()
    names.sampler = OperatorSampler(bus, names, steps={0})
    with names.sampler:
        with Own():
            bus.publish(StepOutcome(optimizer=None))
            torch.ones(1)
        assert torch._C._len_torch_dispatch_stack() == 1
        bus.publish(StepOutcome(optimizer=None))
        assert torch._C._len_torch_dispatch_stack() == 0
    assert names.seen == []


def test_two_samplers_of_one_step_both_see_it():
    bus, first, second = EventBus(), Names(), Names()
    first.sampler, second.sampler = (OperatorSampler(bus, one, steps=None) for one in (first, second))
    with first.sampler, second.sampler:
        torch.ones(1)
    assert first.seen == second.seen == [(0, "aten.ones")]


def test_what_the_script_raises_passes():
    with pytest.raises(RuntimeError, match="size"):
        sample(None, [None], work=lambda: torch.ones(2) + torch.ones(3))
    assert torch._C._len_torch_dispatch_stack() == 0
