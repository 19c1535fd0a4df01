import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from ampwise.instruments.against_fp32 import AgainstFp32
from ampwise.instruments.closeness import relative_error
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.records.against_fp32 import AgainstFp32Record
from ampwise.records.files import from_json, to_json
from known_answers import KNOWN_ANSWERS, linear, randn


def no_autocast():
    return torch.autocast("cpu", enabled=False)


def compared(one_step, *, num_steps=2, low=nullcontext, **options):
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), AgainstFp32(bus, low=low, high=no_autocast, **options) as instrument:
        for _ in range(num_steps):
            one_step()
    return instrument.record()


def of(record, module, call=0):
    return next(one for one in record.modules if (one.module, one.call) == (module, call))


def training(model, x, *, dtype=torch.bfloat16, enabled=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("seed", range(5))
def test_rope_in_bf16_is_found_where_the_error_arises(seed):
    case = next(one for one in KNOWN_ANSWERS if one.name == "rope_positions")
    record = compared(case.make(seed).step)
    rotary = of(record, case.module)
    assert rotary.relative > 0.5
    assert rotary.relative_input is None or rotary.relative_input < 0.01
    assert (rotary.num_distinct, rotary.num_distinct_fp32) == (1, 64)
    assert record.format == "bf16"
    worst = max((one for one in record.modules if one.module), key=lambda one: one.relative)
    assert worst.module == case.module


def decorated(model):
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)  # as accelerate's prepare() does
    return model


def with_region(model):
    forward = model.forward

    def inner(x):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(x)

    model.forward = inner
    return model


@pytest.mark.parametrize("switched", [decorated, with_region])
def test_a_model_that_switches_autocast_on_by_itself_is_compared_with_fp32(switched):
    def model():
        return nn.Sequential(linear(0, 8, 8), linear(1, 8, 4))

    x = randn(2, 3, 8)
    record = compared(training(switched(model()), x, enabled=False))
    assert record.note is None
    assert [one.module for one in record.modules] == ["0", "1", ""]
    same = compared(training(model(), x))
    assert [one.relative for one in record.modules] == [one.relative for one in same.modules]
    assert all(0 < one.relative < 0.02 for one in record.modules)


def test_a_model_that_casts_by_itself_is_not_compared_and_it_is_said():
    class Casts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(randn(0, 8, 4))

        def forward(self, x):
            return x.bfloat16() @ self.weight.bfloat16()

    record = compared(training(Casts(), randn(2, 3, 8), enabled=False))
    assert record.modules == record.flips == ()
    assert record.note.startswith("not compared: Casts computed in bf16 both times")


def test_errors_of_a_healthy_model_are_small_and_told_per_module():
    model = nn.Sequential(linear(0, 8, 8), nn.Tanh(), linear(1, 8, 4))
    record = compared(training(model, randn(0, 5, 8)))
    assert [one.module for one in record.modules] == ["0", "1", "2", ""]
    assert all(0 < one.relative < 0.02 for one in record.modules)
    assert all(one.cosine > 0.999 for one in record.modules)
    first = of(record, "0")
    assert (first.dtype, first.num_elements, first.num_rows, first.relative_input) == ("bf16", 40, 5, 0.0)
    assert of(record, "2").relative_input == of(record, "1").relative
    assert record.cost_ms > 0


def test_the_same_format_twice_is_the_same():
    model = nn.Sequential(linear(0, 8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    record = compared(training(model, randn(0, 5, 8), enabled=False))
    assert [one.relative for one in record.modules] == [0.0] * 4
    assert record.format == "fp32"
    assert model[2].num_batches_tracked == 2


def test_the_loop_goes_on_as_without_it():
    def losses(*, compare):
        model = nn.Sequential(linear(0, 8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
        step = training(model, randn(0, 5, 8))
        torch.manual_seed(3)
        if compare:
            compared(step, num_steps=4)
        else:
            for _ in range(4):
                step()
        return [*model.state_dict().values()]

    assert all(map(torch.equal, losses(compare=True), losses(compare=False)))


def test_decisions_that_change_are_counted():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(2, 2, bias=False)
            with torch.no_grad():
                self.gate.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.001]]))

        def forward(self, x):
            scores = self.gate(x)
            return scores.gather(-1, scores.topk(1).indices)

    model = Router()
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.0, 3000.0]])
    record = compared(training(model, x), step=0)
    flip = record.flips[0]
    assert (flip.module, flip.op, flip.num_decisions, flip.num_flipped) == ("", "aten.topk", 3, 1)
    assert flip.file.endswith("test_against_fp32.py")
    gate = of(record, "gate")
    assert (gate.num_rows, gate.num_flipped) == (3, 1)


def test_half_precision_models_are_widened_and_put_back():
    case = next(one for one in KNOWN_ANSWERS if one.name == "rms_norm_square")
    training_ = case.make(0)
    record = compared(training_.step, step=0, num_steps=1)
    assert of(record, "norm").relative == 1.0  # all zeros
    assert of(record, "fc").relative < 0.01
    assert {one.dtype for one in training_.model.parameters()} == {torch.float16}
    assert record.format == "fp16"


def test_a_fault_that_fp32_has_too_is_seen_in_fp32():
    case = next(one for one in KNOWN_ANSWERS if one.name == "sinkhorn")
    record = compared(case.make(0).step, step=0, num_steps=1)
    assert not math.isfinite(of(record, "sinkhorn").amax)
    assert from_json(to_json(record), AgainstFp32Record).format == "fp32"


def test_a_module_called_twice_has_two_errors():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.fc(x))

    record = compared(training(Twice(), randn(0, 3, 4)))
    assert [(one.module, one.call) for one in record.modules] == [("fc", 0), ("fc", 1), ("", 0)]


def test_a_run_that_ended_before_has_no_comparison():
    assert compared(training(nn.Linear(2, 2), randn(0, 3, 2)), num_steps=1) is None


def test_a_model_that_cannot_run_twice_ends_nothing():
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.calls = nn.Linear(2, 2), 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("no second time")
            return self.fc(x)

    record = compared(training(Once(), randn(0, 3, 2)))
    assert "no second time" in record.note
    assert record.modules == ()


def test_relative_errors_at_the_edges():
    zero, one = torch.zeros(2), torch.ones(2)
    assert relative_error(zero, zero) == 0.0
    assert relative_error(one, zero) == math.inf
    assert relative_error(zero, one) == 1.0
    assert math.isnan(relative_error(one * math.nan, one))
