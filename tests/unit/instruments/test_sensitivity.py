"""Each module alone in a low format: the fault is seen at its module and operator, before any run in that format."""

import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn.functional import relu

from ampwise.emulate.emulation import emulated
from ampwise.instruments.sensitivity import Sensitivity
from ampwise.interpose.cast_lists import share_cuda_lists
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.plan.plan import Plan, Rule
from ampwise.records.files import from_json, to_json
from ampwise.records.sensitivity import SensitivityRecord
from ampwise.runner.rehearsal import PlanRehearsal
from known_answers import KNOWN_ANSWERS, Encoder, linear, randn


def measured(one_step, low="fp16", *, rules=(), num_steps=2, steps=(0,)):
    bus = EventBus()
    rehearsal = PlanRehearsal(Plan(default=low, rules=rules), emulate=low)
    with LoopWatcher(bus, has_optimizer=True), Sensitivity(bus, rehearsal=rehearsal, steps=steps) as instrument:
        for _ in range(num_steps):
            one_step()
    return instrument.record()


def of(record, module):
    return next(one for one in record.modules if one.module == module)


def training(model, *batch, lr=0.01):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def step():
        optimizer.zero_grad()
        loss = model(*batch).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


@pytest.mark.parametrize("name", ["t5_wo", "vae_conv", "fed_batch_norm"])
def test_an_overflow_is_seen_at_its_module_alone(name):
    case = next(one for one in KNOWN_ANSWERS if one.name == name)
    record = measured(case.make(1).in_fp32().step)
    faults = {one.module: one.fault for one in record.modules if one.fault is not None}
    assert list(faults) == [case.module]
    fault = faults[case.module]
    assert fault.format == "fp16"
    assert fault.amax > 65504
    assert fault.line is not None
    assert of(record, case.module).score == math.inf or math.isnan(of(record, case.module).score)


PURE = {
    "longt5_residual": ("add", "fp16"),
    "rms_norm_square": ("pow", "fp16"),
    "saturated_log": ("log1p", "bf16"),
    "rope_positions": ("mul", "bf16"),
}


@pytest.mark.parametrize("name", PURE)
def test_what_an_operators_rule_would_break_is_seen_at_its_module(name):
    case = next(one for one in KNOWN_ANSWERS if one.name == name)
    op, low = PURE[name]
    record = measured(case.make(1).in_fp32().step, low, rules=(Rule(op=op, compute=low),))
    worst = [one for one in record.modules if one.fault is not None or one.fell_together]
    assert [one.module for one in worst] == [case.module]


def test_a_hidden_overflow_is_one_although_its_output_is_finite():
    case = next(one for one in KNOWN_ANSWERS if one.name == "rms_norm_square")
    record = measured(case.make(1).in_fp32().step, rules=(Rule(op="pow", compute="fp16"),))
    norm = of(record, "norm")
    assert norm.fault.op == "aten.pow"
    assert norm.fault.amax > 65504
    assert norm.relative == pytest.approx(1.0)


def test_a_mask_is_no_fault():
    mask = torch.full((3, 3), torch.finfo(torch.float32).min).triu(1)
    record = measured(training(Encoder(0), randn(0, 3, 4), mask), rules=(Rule(op="add", compute="fp16"),))
    assert [one.module for one in record.modules if one.fault] == []


def test_what_a_module_gives_to_those_it_calls_is_its_own_error():
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.out = linear(0, 4, 4), linear(1, 4, 4), linear(2, 4, 4)

        def forward(self, x):
            return self.out(self.q(x) @ self.k(x).T @ x)

    record = measured(training(Scores(), randn(0, 5, 4)))
    own = of(record, "")
    assert own.calls_modules
    assert own.score > 0
    assert 0 < own.relative < 0.01


def test_errors_are_the_modules_own():
    """Of a stack, each layer is measured as if all others were exact: a far worse one does not show in the next."""
    model = nn.Sequential(linear(0, 8, 8), nn.Identity(), linear(1, 8, 8), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].weight.mul_(1e-5)  # subnormal in fp16
        model[2].weight.mul_(1e5)
    record = measured(training(model, randn(0, 5, 8)))
    assert of(record, "0").relative > 0.01
    assert all(one.relative < 1e-3 for one in record.modules if one.module != "0")
    assert of(record, "1").relative == of(record, "").relative == 0.0


def test_the_score_is_gradient_times_error_squared():
    model, x = nn.Linear(6, 3), randn(3, 4, 6)
    with emulated("bf16"), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = model(x)
    y = model(x)
    (gradient,) = torch.autograd.grad(y.square().mean(), y)
    record = measured(training(model, x), "bf16")
    expected = (gradient * (low.float() - y.detach())).square().sum().item()
    assert of(record, "").score == pytest.approx(expected, rel=1e-4)


def test_the_loop_goes_on_bit_for_bit():
    def losses(*, measure):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, 2)
        )
        step, seen = training(model, randn(0, 6, 4)), []
        if measure:
            measured(lambda: seen.append(step()), num_steps=5, steps=(0, 3))
        else:
            seen = [step() for _ in range(5)]
        return seen, int(model[1].num_batches_tracked), torch.get_rng_state().tolist()

    assert losses(measure=True) == losses(measure=False)


def test_nothing_is_left_on_the_model():
    model = nn.Sequential(linear(0, 4, 4), nn.Sequential(linear(1, 4, 4)))
    measured(training(model, randn(0, 5, 4)), rules=(Rule(module="0", compute="fp32"),))
    assert all("forward" not in vars(one) for one in model.modules())
    assert all(not one._forward_hooks and not one._forward_pre_hooks for one in model.modules())


def test_rules_of_the_plan_hold_meanwhile():
    model = nn.Sequential(linear(0, 4, 4), linear(1, 4, 4))
    record = measured(training(model, randn(0, 5, 4)), rules=(Rule(module="0", compute="fp32"),))
    assert of(record, "0").relative == 0.0
    assert of(record, "1").relative > 0.0


def test_only_the_steps_that_were_asked_for_are_measured():
    step = training(linear(0, 4, 4), randn(0, 5, 4))
    record = measured(step, num_steps=6, steps=(1, 4))
    assert record.steps == (1, 4)
    assert of(record, "").num_calls == 2
    assert record.cost_ms > 0


def test_a_shared_module_tells_all_its_names():
    shared = linear(0, 4, 4)
    record = measured(training(nn.Sequential(shared, nn.Tanh(), shared), randn(0, 5, 4)))
    assert of(record, "0").aliases == ("2",)
    assert of(record, "0").num_calls == 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_model_is_measured_uncompiled():
    model = nn.Sequential(linear(0, 4, 4), linear(1, 4, 4))
    step = training(torch.compile(model, backend="eager"), randn(0, 5, 4))
    step()
    record = measured(step)
    assert {one.module for one in record.modules} == {"", "0", "1"}
    assert of(record, "0").score > 0


def test_keywords_and_nested_outputs_are_passed_on():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = linear(0, 4, 4)

        def forward(self, x, *, scale):
            return {"y": (self.fc(x["x"]) * scale,)}

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner({"x": x}, scale=2.0)["y"][0]

    record = measured(training(Outer(), randn(0, 5, 4)))
    assert record.note is None
    assert of(record, "inner.fc").score > 0


def test_a_module_that_cannot_be_called_again_is_told_and_harms_nobody():
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.calls = linear(0, 4, 4), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 1:
                raise ValueError("only once")
            return self.fc(x)

    record = measured(training(Once(), randn(0, 5, 4)), num_steps=1)
    assert record.note == "the model itself: not measured: ValueError: only once"
    assert {one.module for one in record.modules} == {"", "fc"}


def test_other_decisions_are_counted():
    class Router(nn.Module):
        def forward(self, x):
            return x * (x.half().float() if False else (x @ torch.eye(4))).argmax(-1, keepdim=True)

    x = torch.tensor([[1.0001, 1.0, 0, 0], [0, 3, 0, 0], [0, 0, 1.0001, 1.0]]).requires_grad_()
    model = nn.Sequential(linear(0, 4, 4), Router())
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
    router = of(measured(training(model, x), "bf16"), "1")
    assert router.num_decisions == 3


def test_the_record_goes_through_a_file():
    case = next(one for one in KNOWN_ANSWERS if one.name == "t5_wo")
    record = measured(case.make(0).in_fp32().step)
    again = from_json(to_json(record), SensitivityRecord)
    assert to_json(again) == to_json(record)


def test_the_lists_and_the_emulation_go_with_it():
    @contextmanager
    def lists():
        undo = share_cuda_lists("cpu")
        yield
        undo()

    with lists():  # somebody else's stay
        measured(training(linear(0, 4, 4), randn(0, 5, 4)))
    with emulated("bf16"):
        pass


class Scores(nn.Module):
    """Several operators, of which the product leaves fp16's range, or takes its digits."""

    def __init__(self, gain=1.0, shift=0.0):
        super().__init__()
        self.q, self.k, self.gain, self.shift = linear(0, 4, 4), linear(1, 4, 4), gain, shift

    def forward(self, x):
        scores = (self.q(x) * self.gain) @ self.k(x).transpose(0, 1) / self.gain
        return (scores + self.shift - self.shift).softmax(-1) @ x


def test_of_several_operators_the_one_is_named_that_overflows():
    record = measured(training(Scores(gain=400.0), randn(0, 5, 4).abs() * 10))
    own = of(record, "")
    assert own.fault.op == "aten.mm"
    assert own.operators == ("mul", "matmul", "div", "add", "sub")
    assert own.at_fault == ("matmul",)
    assert own.left == 0.0


def test_of_several_operators_the_one_is_named_that_loses_the_digits():
    class Shifted(nn.Module):
        def forward(self, x):
            return relu(x).square() * ((x + 300.0) - 300.0)

    own = of(measured(training(nn.Sequential(linear(0, 4, 4), Shifted()), randn(0, 5, 4)), "bf16"), "1")
    assert own.at_fault == ("add",)
    assert own.left < 0.3
    assert own.fell_together


def test_two_operators_that_fail_apart_are_both_named():
    class Both(nn.Module):
        def forward(self, x):
            return (x @ torch.full((4, 4), 4e4)).tanh() + (x * 6e4).tanh() - relu(x)

    own = of(measured(training(nn.Sequential(linear(0, 4, 4), Both()), randn(0, 5, 4).abs() + 3)), "1")
    assert set(own.at_fault) == {"matmul", "mul"}
    assert set(own.operators) > {"matmul", "mul"}


def test_what_a_cast_of_the_modules_own_breaks_is_no_operators():
    class Cast(nn.Module):
        def forward(self, x):
            return (x.float() * 1e6).half().float() * 1e-6 + x.relu()

    x = randn(0, 5, 4).abs()
    own = of(measured(training(nn.Sequential(linear(0, 4, 4), Cast()), x)), "1")
    assert own.at_fault == ()


def test_a_layer_of_one_operator_has_none_at_fault():
    case = next(one for one in KNOWN_ANSWERS if one.name == "t5_wo")
    own = of(measured(case.make(1).in_fp32().step), case.module)
    assert (own.operators, own.at_fault) == (("linear",), ())


def contrastive(gain):
    image, words = linear(0, 4, 4), linear(1, 4, 4)
    optimizer = torch.optim.SGD([*image.parameters(), *words.parameters()], lr=0.01)
    x = randn(0, 6, 4).abs() + 1

    def step():
        data = x * 1e5 @ x.T  # no part of the loss
        a, b = image(x) * gain, words(x) * gain
        loss = nn.functional.cross_entropy(a @ b.T / gain**2, torch.arange(6)) + 0 * data.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def test_operators_outside_of_the_modules_are_measured():
    found = {one.op: one for one in measured(contrastive(1.0)).outside}
    assert found["matmul"].score > 0
    assert found["cross_entropy_loss"].score == 0.0
    assert all(one.fault is None for one in found.values())
    fault = {one.op: one for one in measured(contrastive(300.0)).outside}["matmul"].fault
    assert fault.format == "fp16"
    assert fault.amax > 65504
    assert fault.line is not None


def test_outside_too_the_loop_goes_on_bit_for_bit():
    def losses(measure):
        step, seen = contrastive(1.0), []
        if measure:
            measured(lambda: seen.append(step()), num_steps=4, steps=(0, 2))
        else:
            seen = [step() for _ in range(4)]
        return seen, torch.overrides._get_current_function_mode()

    assert losses(measure=True) == losses(measure=False)
