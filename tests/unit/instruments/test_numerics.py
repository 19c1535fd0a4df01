import gc
import json
import math
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampwise.formats.table import FORMATS
from ampwise.instruments.numerics import NumericsWatch
from ampwise.instruments.tallies import half_ulp, lost_updates
from ampwise.observe.events import BackwardEnded, BackwardStarted, EventBus, StepOutcome, StepStarted
from ampwise.observe.loop import LoopWatcher
from ampwise.records.files import from_json, to_json
from ampwise.records.numerics import NumericsRecord, TensorKind
from known_answers import KNOWN_ANSWERS, linear, randn

KINDS = set(TensorKind)


def watched(step, *, num_steps=1, judge=None, max_share=None, **options):
    bus = EventBus()
    judging = {} if judge is None else {"judge": judge}
    with LoopWatcher(bus, has_optimizer=True, **judging), NumericsWatch(bus, max_share=max_share, **options) as watch:
        for _ in range(num_steps):
            step()
    return watch.record()


def of(record, kind, module, parameter=None):
    found = [one for one in record.tensors if (one.kind, one.module, one.parameter) == (kind, module, parameter)]
    assert len(found) == 1
    return found[0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def training(model=None, *, lr=0.1, x=None, loss=lambda output: output.square().sum()):
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x = randn(0, 3, 4) if x is None else x

    def step():
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()

    return model, step


def test_every_kind_is_measured_right():
    model, step = training(lr=0.5)
    x = randn(0, 3, 4)
    hidden = model.body(x)
    weight = model.head.weight.detach().clone()
    output = model.head(hidden)
    gradient = 2 * output.detach()
    record = watched(step)
    assert of(record, TensorKind.ACTIVATION, "head").max_amax == pytest.approx(output.abs().max().item(), rel=1e-5)
    assert of(record, TensorKind.GRADIENT, "head").max_amax == pytest.approx(gradient.abs().max().item(), rel=1e-5)
    assert of(record, TensorKind.WEIGHT, "head", "weight").max_amax == pytest.approx(
        weight.abs().max().item(), rel=1e-5
    )
    wgrad = gradient.T @ hidden.detach()
    assert of(record, TensorKind.WEIGHT_GRADIENT, "head", "weight").max_amax == pytest.approx(
        wgrad.abs().max().item(), rel=1e-5
    )
    update = of(record, TensorKind.UPDATE, "head", "weight")
    assert update.max_amax == pytest.approx(0.5 * wgrad.abs().max().item(), rel=1e-4)
    assert update.histogram.num_elements == 8
    assert update.num_elements == 8
    assert {one.kind for one in record.tensors} == KINDS
    assert {one.dtype for one in record.tensors} == {"fp32"}


def test_an_output_handed_on_counts_once_where_it_was_made():
    _, step = training()
    record = watched(step)
    activations = {one.module for one in record.tensors if one.kind is TensorKind.ACTIVATION}
    assert activations == {"body.0", "body.1", "head"}


def test_one_step_in_so_many_is_sampled_and_no_hook_is_there_between():
    _, step = training()
    seen = []

    def noted():
        from torch.nn.modules.module import _global_forward_hooks

        seen.append(len(_global_forward_hooks))
        step()

    record = watched(noted, num_steps=11, every=5)
    assert [one.index for one in record.steps] == [0, 5, 10]
    assert seen == [1, 0, 0, 0, 0] * 2 + [1]
    assert record.num_steps == 11
    assert all(len(one.amax) == 3 for one in record.tensors)
    assert of(record, TensorKind.ACTIVATION, "head").histogram.num_elements == 3 * 6


def test_a_fault_has_more_steps_sampled():
    model, step = training()
    count = [0]

    def sometimes():
        count[0] += 1
        if count[0] == 11:
            with torch.no_grad():
                model.head.bias[0] = math.inf
        step()

    record = watched(sometimes, num_steps=24, every=10)
    assert [one.index for one in record.steps][:4] == [0, 10, 11, 12]
    assert record.alarms[0] == 10
    assert of(record, TensorKind.ACTIVATION, "head").num_non_finite_steps == len(record.steps) - 1


def test_a_skipped_step_is_an_alarm_and_has_no_updates():
    _, step = training()
    record = watched(step, num_steps=3, judge=lambda optimizer: StepOutcome(optimizer=optimizer, stepped=False))
    assert record.alarms == (0, 1, 2)
    assert not [one for one in record.tensors if one.kind is TensorKind.UPDATE]


def test_samples_thin_out_in_long_runs():
    _, step = training()
    record = watched(step, num_steps=200, every=1)
    assert len(record.steps) < 120
    assert len(record.steps) > 32


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_is_not_counted_twice(use_reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=use_reentrant)

    _, step = training(Checkpointed(), x=randn(0, 3, 4).requires_grad_())
    record = watched(step)
    for kind in (TensorKind.ACTIVATION, TensorKind.GRADIENT):
        assert of(record, kind, "net.body.0").histogram.num_elements == 12


def test_micro_batches_are_one_gradient_and_several_activations():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        for _ in range(2):
            model(randn(0, 3, 4)).sum().backward()
        optimizer.step()

    record = watched(step)
    assert of(record, TensorKind.ACTIVATION, "head").histogram.num_elements == 12
    assert of(record, TensorKind.WEIGHT_GRADIENT, "head", "bias").max_amax == 6.0


def test_the_loss_scale_tells_what_the_numbers_hold():
    _, step = training(loss=lambda output: output.sum() * 1024)
    record = watched(
        step, judge=lambda optimizer: StepOutcome(optimizer=optimizer, scale=torch.tensor(1024.0)), every=1
    )
    gradient = of(record, TensorKind.GRADIENT, "head")
    assert (gradient.is_scaled, gradient.max_amax, record.final_scale) == (True, 1024.0, 1024.0)
    assert of(record, TensorKind.WEIGHT_GRADIENT, "head", "bias").is_scaled
    assert not of(record, TensorKind.ACTIVATION, "head").is_scaled
    assert record.verdict(gradient, FORMATS["fp8_e4m3"]).overflowing == 1.0
    assert record.verdict(gradient, FORMATS["fp8_e4m3"], scale=256.0).overflowing == 0.0


def test_weights_unscaled_at_the_leaves_hold_no_scale():
    _, step = training()
    judge = lambda optimizer: StepOutcome(optimizer=optimizer, scale=8.0)  # noqa: E731 # one line says it
    record = watched(step, judge=judge, has_unscaled_weights=True)
    assert not of(record, TensorKind.WEIGHT_GRADIENT, "head", "bias").is_scaled
    assert of(record, TensorKind.GRADIENT, "head").is_scaled


def test_gradient_underflow_is_foreseen_in_fp32_and_cured_by_a_scale():
    case = next(one for one in KNOWN_ANSWERS if one.name == "gradient_underflow")
    record = watched(case.make(0).in_fp32().step)
    gradient = of(record, TensorKind.GRADIENT, case.module)
    assert record.verdict(gradient, FORMATS["fp16"]).flushed == 1.0
    scaled = record.verdict(gradient, FORMATS["fp16"], scale=65536.0)
    assert (scaled.flushed, scaled.subnormal) == (0.0, 0.0)
    held = of(watched(case.make(0).step), TensorKind.WEIGHT_GRADIENT, case.module, "weight")
    assert held.histogram.num_zeros == held.histogram.num_elements


def test_lost_updates_of_half_precision_weights_are_seen():
    model = nn.Sequential(linear(0, 4, 2, scale=400.0)).to(torch.bfloat16)
    _, step = training(model, lr=1e-4, x=torch.ones(1, 4, dtype=torch.bfloat16), loss=lambda output: output.sum())
    lost = of(watched(step), TensorKind.UPDATE, "0", "weight").lost
    assert [(one.format, one.is_own, one.share, one.num_updates) for one in lost] == [("bf16", True, 1.0, 8)]


def test_updates_that_a_narrower_format_would_lose_are_foreseen():
    model = nn.Sequential(linear(0, 4, 2, scale=200.0))
    _, step = training(model, lr=0.05, x=torch.ones(1, 4), loss=lambda output: output.sum())
    lost = of(watched(step), TensorKind.UPDATE, "0", "weight").lost
    assert [(one.format, one.is_own, one.num_lost) for one in lost] == [
        ("fp32", True, 0),
        ("bf16", False, 8),
        ("fp16", False, 0),
    ]


def test_a_learning_rate_of_zero_loses_nothing():
    _, step = training(lr=0.0)
    assert not [one for one in watched(step).tensors if one.kind is TensorKind.UPDATE]


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_half_an_ulp_is_the_formats_own(name):
    row = FORMATS[name]
    weights = torch.tensor([1.0, -1.5, 3.0, 1e-3, 0.0, 1e-30, 60000.0])
    expected = [row.ulp(value) / 2 for value in weights.tolist()]
    assert half_ulp(weights.double(), row).tolist() == expected


def test_a_step_that_was_skipped_on_the_device_lost_nothing():
    before = torch.ones(4)
    lost = lost_updates(before, before.clone(), torch.ones(4) > 0, sizes=[4], stepped=torch.tensor(data=False))
    assert lost.sum() == 0


def test_lost_updates_are_counted_for_each_weight_alone():
    before = torch.tensor([1.0, 1.0, 0.0, 1.0, 256.0])
    after = torch.tensor([1.0, 1.0 + 2**-10, 1.0, 1.0 + 2**-12, 256.0])
    has_gradient = torch.tensor([True, True, True, True, False])
    lost = lost_updates(before, after, has_gradient, sizes=[2, 0, 3], stepped=True)
    fp32, bf16, fp16 = lost.unbind(1)
    assert fp32.tolist() == [[1, 2], [0, 0], [0, 2]]
    assert bf16.tolist() == [[1, 1], [0, 0], [1, 2]]
    assert fp16.tolist() == [[0, 1], [0, 0], [1, 2]]


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor
    extra: None = None


@pytest.mark.parametrize(
    "give", [lambda x: Output(x, x.sum()), lambda x: {"a": [x, None, "text"]}, lambda x: (x,), lambda _: None]
)
def test_models_may_give_anything(give):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            self.output = self.fc(x)
            return give(self.output)

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(randn(0, 3, 4))
        model.output.sum().backward()
        optimizer.step()

    record = watched(step)
    assert of(record, TensorKind.ACTIVATION, "fc").histogram.num_elements == 6
    assert record.note is None


def test_evaluation_is_not_measured():
    model, step = training()

    def both():
        with torch.no_grad():
            model(torch.full((3, 4), 1e6))
        step()

    assert of(watched(both), TensorKind.ACTIVATION, "head").max_amax < 1e3


def test_compiled_models_are_measured_at_their_border_and_not_compiled_again():
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    model = torch.compile(Net(), backend="eager")
    _, step = training(model)
    step()
    graphs = counters["stats"]["unique_graphs"]
    record = watched(step, num_steps=4, every=2)
    assert counters["stats"]["unique_graphs"] == graphs
    assert of(record, TensorKind.ACTIVATION, "").max_amax is not None
    assert of(record, TensorKind.WEIGHT, "body.0", "weight").max_amax is not None


def test_a_tensor_that_cannot_be_measured_ends_nothing(monkeypatch):
    _, step = training()
    monkeypatch.setattr("ampwise.instruments.tallies.extremes", lambda _: 1 / 0)
    record = watched(step)
    assert record.num_steps == 1
    assert "ZeroDivisionError" in record.note


def test_nothing_is_read_from_the_device_before_the_record(monkeypatch):
    bus, model = EventBus(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reads = []
    real = torch.Tensor.tolist
    monkeypatch.setattr("ampwise.instruments.tallies.Reading.has_arrived", property(lambda _: False))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(1) or real(tensor))
    monkeypatch.setattr(torch.Tensor, "item", lambda _: reads.append(1))
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda _: reads.append(1))
    monkeypatch.setattr(torch.Tensor, "__float__", lambda _: reads.append(1))
    with NumericsWatch(bus) as watch:
        loss = model(randn(0, 3, 4)).sum()
        bus.publish(BackwardStarted(roots=(loss,)))
        loss.backward()
        bus.publish(BackwardEnded(roots=(loss,)))
        bus.publish(StepStarted(optimizer=optimizer))
        bus.publish(StepOutcome(optimizer=optimizer, scale=torch.tensor(2.0)))
        assert reads == []
    monkeypatch.undo()
    assert watch.record().tensors


def test_between_samples_only_the_ends_of_steps_are_heard_of():
    bus = EventBus()
    heard = {}
    with NumericsWatch(bus, every=3, max_share=None):
        for index in range(5):
            heard[index] = {kind for kind in (BackwardEnded, StepStarted, StepOutcome) if bus.wants(kind)}
            bus.publish(StepOutcome(optimizer=None))
    assert heard[0] == heard[3] == {BackwardEnded, StepStarted, StepOutcome}
    assert heard[1] == heard[2] == heard[4] == {StepOutcome}


def test_nothing_is_left_when_the_loop_raises():
    def step():
        raise RuntimeError("the script's own")

    with pytest.raises(RuntimeError, match="the script's own"):
        watched(step)


def test_hooks_on_a_graph_that_is_kept_do_nothing_afterwards():
    model = Net()
    bus = EventBus()
    with NumericsWatch(bus) as watch:
        output = model(randn(0, 3, 4)).sum()
    output.backward()
    assert not [one for one in watch.record().tensors if one.kind is TensorKind.GRADIENT]


def test_no_tensor_is_kept_alive():
    model, step = training()
    outputs = []
    handle = model.head.register_forward_hook(lambda _m, _i, output: outputs.append(weakref.ref(output)))
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), NumericsWatch(bus):
        step()
        handle.remove()
        gc.collect()
        assert outputs[0]() is None


def test_a_thousand_steps_of_a_hundred_modules_fit_in_five_megabytes():
    layers = [(nn.Linear(16, 16), nn.LayerNorm(16)) for _ in range(50)]
    model = nn.Sequential(*(one for pair in layers for one in pair))
    _, step = training(model, x=randn(0, 8, 16), lr=1e-3)
    record = watched(step, num_steps=20, every=1)
    text = to_json(record)
    assert len(record.tensors) == 100 * 2 + 200 * 3
    assert len(text) < 5_000_000
    assert from_json(text, NumericsRecord) == record
    assert json.loads(text)["num_steps"] == 20


def test_measuring_keeps_to_its_share_of_the_time(monkeypatch):
    import time

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr("ampwise.instruments.numerics.measure", slow_measure(now))
    _, step = training()

    def timed():
        now[0] += 1.0
        step()

    record = watched(timed, num_steps=200, every=10, max_share=1 / 32)
    num_measured = sum(len(one.amax) for one in record.tensors) / len(record.steps)
    assert num_measured == 3 * 2 + 4 * 3
    assert [one.index for one in record.steps] == [0, 56, 112, 168]  # 14 tensors take 1.75 s, once in 56 s
    assert record.cost_ms == pytest.approx(4 * 1750 / 200)


def slow_measure(now):
    from ampwise.instruments.tallies import measure

    def slow(tensor):
        now[0] += 0.125
        return measure(tensor)

    return slow


def test_a_module_called_twice_keeps_its_nan():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x * math.nan) + self.fc(x)

    _, step = training(Twice())
    activation = of(watched(step), TensorKind.ACTIVATION, "fc")
    assert math.isnan(activation.amax[0])
    assert activation.histogram.num_elements == 24


def test_the_cost_is_stated():
    _, step = training()
    assert watched(step).cost_ms > 0.0
