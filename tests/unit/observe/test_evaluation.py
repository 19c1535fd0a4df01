"""Which forward passes are steps of an evaluation, what is kept of their outputs, and how they are timed."""

import pytest
import torch
from torch import nn

from ampwise.instruments.outputs import OutputWatch
from ampwise.instruments.steps import StepWatcher
from ampwise.observe.evaluation import EvaluationLoop
from ampwise.observe.events import EventBus, StepOutcome, StepStarted
from ampwise.observe.loop import LoopWatcher


class Trained(Exception):  # noqa: N818 - no error
    pass


def refuse():
    raise Trained


@pytest.fixture
def bus():
    bus = EventBus()
    with LoopWatcher(bus):
        yield bus


def told_on(bus):
    told = []
    bus.subscribe(StepStarted, told.append)
    bus.subscribe(StepOutcome, told.append)
    return told


def test_a_step_is_a_pass_of_the_first_model_without_gradients(bus):
    first, second, criterion = nn.Linear(2, 2), nn.Linear(2, 2), nn.MSELoss()
    told = told_on(bus)
    with EvaluationLoop(bus, on_training=refuse):
        first(torch.ones(1, 2))
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                criterion(second(first(torch.ones(1, 2))), torch.ones(1, 2))
    with torch.no_grad():
        first(torch.ones(1, 2))
    assert [type(one) for one in told] == [StepStarted, StepOutcome] * 2


def test_a_backward_pass_is_told(bus):
    with EvaluationLoop(bus, on_training=refuse), pytest.raises(Trained):
        nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()


def test_outputs_are_kept_in_whatever_they_are_wrapped(bus):
    class Wrapped(nn.Linear):
        def forward(self, x):
            return {"ids": torch.zeros(3, dtype=torch.long), "logits": super().forward(x)}

    model = Wrapped(2, 3).bfloat16()
    with OutputWatch(bus) as outputs, EvaluationLoop(bus, on_training=refuse), torch.no_grad():
        seen = [model(torch.full((4, 2), float(number)).bfloat16())["logits"] for number in range(2)]
    samples = outputs.record().samples
    assert [one.shape for one in samples] == [(4, 3)] * 2
    assert [one.numbers for one in samples] == [tuple(one.float().flatten().tolist()) for one in seen]
    assert [one.decisions for one in samples] == [tuple(one.argmax(-1).tolist()) for one in seen]


def test_of_large_outputs_some_numbers_are_kept_and_rows_of_one_number_decide_nothing(bus):
    with OutputWatch(bus) as outputs, EvaluationLoop(bus, on_training=refuse), torch.no_grad():
        nn.Linear(2, 100)(torch.ones(1000, 2))
    (one,) = outputs.record().samples
    assert (len(one.numbers) <= 256, len(one.decisions) <= 64) == (True, True)
    with OutputWatch(bus) as outputs, EvaluationLoop(bus, on_training=refuse), torch.no_grad():
        nn.Linear(2, 1)(torch.ones(5, 2))
    assert outputs.record().samples[0].decisions == ()


class CountingClock:
    def __init__(self):
        self.now = 0

    def mark(self):
        self.now += 1
        return self.now

    def ms_between(self, start, end):
        return float(end - start)


def test_passes_are_timed_from_their_own_start(bus):
    model = nn.Linear(2, 1)
    clock, devices = CountingClock(), []
    with (
        StepWatcher(bus, clock_for=lambda device: devices.append(device) or clock, evaluates=True) as steps,
        EvaluationLoop(bus, on_training=refuse),
        torch.no_grad(),
    ):
        for size in (4, 3):
            clock.now += 100  # loading data
            model(torch.ones(size, 2))
    assert [(step.time_ms, step.num_samples, step.loss) for step in steps.records()] == [(1.0, 4, None), (1.0, 3, None)]
    assert devices == [torch.device("cpu")]
