import pytest
import torch
from torch import nn

from ampwise.instruments.nonfinite import NonFiniteWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from known_answers import KNOWN_ANSWERS


def watched(model, *args, trace=True, steps=(), num_steps=2, **kwargs):
    """What the instrument records of a loop that calls ``model`` so."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), NonFiniteWatch(bus, trace=trace, steps=steps) as watch:
        for _ in range(num_steps):
            model(*args, **kwargs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch.record()


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("causal", torch.zeros(3, 3).masked_fill(torch.eye(3) == 0, -torch.inf))

    def forward(self, x, *, mask):
        return (self.fc(x) + mask + self.causal).softmax(-1)


def with_nan(*shape):
    tensor = torch.ones(*shape)
    tensor.view(-1)[1] = torch.nan
    return tensor


def test_an_argument_is_named_by_its_place_once():
    record = watched(nn.Linear(4, 2), with_nan(3, 4))
    (one,) = record.inputs
    assert (one.step, one.module, one.name, one.is_parameter) == (0, "", "argument 0", False)
    assert (one.value.dtype, one.value.shape, one.value.num_nan, one.value.maximum) == ("fp32", (3, 4), 1, 1.0)
    assert record.origins == ()


def test_a_keyword_is_named_and_a_mask_of_minus_infinity_is_none():
    mask = torch.zeros(3, 3)
    mask[0, 1] = -torch.inf
    assert watched(Masked(), torch.ones(3, 3), mask=mask).inputs == ()
    mask[1, 1] = torch.inf
    assert [one.name for one in watched(Masked(), torch.ones(3, 3), mask=mask).inputs] == ["mask"]


def test_a_parameter_that_was_bad_before_its_first_step_is_named_with_its_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
        model[1].running_mean[0] = torch.inf
    record = watched(model, torch.ones(3, 4))
    assert [(one.module, one.name) for one in record.inputs if one.is_parameter] == [
        ("0", "weight"),
        ("1", "running_mean"),
    ]


def test_statistics_that_an_overflow_spoilt_are_told_at_the_end():
    (case,) = [one for one in KNOWN_ANSWERS if one.name == "fed_batch_norm"]
    training = case.make(0)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), NonFiniteWatch(bus) as watch:
        training.step()
    assert watch.record().buffers == ("bn.running_mean", "bn.running_var")


def test_a_healthy_loop_has_none():
    record = watched(Masked(), torch.ones(3, 3), mask=torch.zeros(3, 3))
    assert (record.inputs, record.buffers) == ((), ())


@pytest.mark.parametrize("steps", [(), (1,)], ids=["guard alone", "a step in full"])
def test_a_step_watched_in_full_shows_what_leaves_no_trace(steps):
    (case,) = [one for one in KNOWN_ANSWERS if one.is_hidden]
    training = case.make(0)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), NonFiniteWatch(bus, steps=steps) as watch:
        for _ in range(3):
            training.step()
    record = watch.record()
    assert record.traced_steps == steps
    assert [one.site.op for one in record.origins] == ([case.op] if steps else [])


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("least", torch.full((), torch.inf))

    def forward(self, x):
        with torch.no_grad():
            self.scale.mul_(1e25)
        return self.fc(x) / self.scale


@pytest.mark.parametrize("trace", [True, False])
def test_a_buffer_that_became_infinite_is_told_from_one_that_always_was(trace):
    record = watched(Counting(), torch.ones(3, 4), trace=trace)
    assert record.buffers == ("scale", "least")
    assert record.buffers_before == ("least",)
