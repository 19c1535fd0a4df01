"""A captured step is the same TrainStep's loop, bit for bit, though its Python runs only once.

The CPU stands for an accelerator here: its graphs run the recorded operators again on the same memory, and the host may
not look at a number while a step is recorded.
"""

import copy
import warnings

import numpy as np
import pytest
import torch

from ampwise import TrainStep, load_checkpoint, save_checkpoint
from ampwise._base.errors import UsageError
from ampwise.observe.events import BUS, BackwardEnded, StepOutcome
from ampwise.runtime.hardware import host
from ampwise.runtime.scaling.loss_scale import DynamicLossScale
from replaying import CpuGraphs, SyncError

INF = float("inf")
OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 6),
            torch.nn.BatchNorm1d(6),
            torch.nn.Dropout(0.3),
            torch.nn.Tanh(),
            torch.nn.Linear(6, 1),
        )
        self.num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        return self.layers(x)


@pytest.fixture
def accelerator(monkeypatch):
    """The CPU as an accelerator: nothing on it may be looked at, and its work can be recorded."""
    monkeypatch.setattr(host, "reads_freely", lambda _: False)
    made = []

    def graphs_for(_):
        made.append(CpuGraphs())
        return made[-1]

    monkeypatch.setattr("ampwise.runtime.step.step.graphs_for", graphs_for)
    return made


class Loop:
    def __init__(self, *, kind="adamw", precision="fp16", window=1, clip=None, schedule=False):
        torch.manual_seed(0)
        self.net = Net()
        optimizer = OPTIMIZERS[kind](self.net.parameters())
        self.schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)] if schedule else []
        scale = DynamicLossScale(scale=1024.0, growth_interval=4) if precision == "fp16" else None
        self.step = TrainStep(
            optimizer,
            modules=self.net,
            schedulers=self.schedulers,
            precision=precision,
            clip_grad_norm=clip,
            accumulation_steps=window,
            loss_scale=scale,
            capture=True,
        )

    def loss(self, x, y):
        return torch.nn.functional.mse_loss(self.net(x), y)

    def state(self):
        """What lives on the device from one step to the next."""
        optimizer = self.step.optimizers[0]
        yield from (*self.net.parameters(), *self.net.buffers())
        yield from (
            one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)
        )
        yield from (param.grad for param in self.net.parameters() if param.grad is not None)
        if self.step.scaler.is_enabled():
            scaler = self.step.scaler
            yield from (scaler._scale, scaler._growth_tracker, scaler._memory.num_overflows)

    def everything(self):
        return [one.clone() for one in self.state()]


def batches(count, *, bad=(6, 9)):
    generator = torch.Generator().manual_seed(1)
    for index in range(count):
        x = torch.randn(8, 4, generator=generator)
        yield (x * INF if index in bad else x), torch.randn(8, 1, generator=generator)


def same(mine, other):
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(mine, other, strict=True))


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize(("kind", "precision"), [("adamw", "fp16"), ("sgd", "fp16"), ("adamw", "bf16")])
def test_replays_are_the_loop_by_hand(accelerator, kind, precision, window, clip, schedule):
    options = {"kind": kind, "precision": precision, "window": window, "clip": clip, "schedule": schedule}
    bad = (3 * window + 2, 5 * window + 1) if precision == "fp16" else ()
    data = list(batches(9 * window, bad=bad))
    byhand, results = Loop(**options), []
    for x, y in data:
        with byhand.step.autocast():
            loss = byhand.loss(x, y)
        results.append((byhand.step(loss), loss.detach(), [one.clone() for one in byhand.net.state_dict().values()]))
    captured = Loop(**options)
    graphs, train = accelerator[-1], captured.step.capture(captured.loss)
    for (x, y), (expected, loss, state) in zip(data, results, strict=True):
        result = train(x, y)
        assert torch.equal(result.loss_tensor.nan_to_num(), loss.float().nan_to_num())
        assert (result.is_update, result.stepped, result.scale) == (
            expected.is_update,
            expected.stepped,
            expected.scale,
        )
        assert result.grad_norm == pytest.approx(expected.grad_norm, nan_ok=True)
        assert same(captured.net.state_dict().values(), state)
    assert same(captured.everything(), byhand.everything())
    assert (graphs.num_warm_ups, graphs.num_replayed) == (3 * window, 6 * window)
    assert graphs.num_recorded == min(window, 3)
    assert captured.step.scaler.history() == byhand.step.scaler.history()


def test_a_short_window_and_steps_by_hand_between_replays_are_the_loop_by_hand(accelerator):
    plan = ["graph"] * 16 + ["last", "hand", "graph", "graph", "graph", "hand", "last", "graph", "last"]
    loops = []
    for is_captured in (False, True):
        one = Loop(window=3, clip=0.1)
        train = one.step.capture(one.loss)
        generator, states = torch.Generator().manual_seed(2), []
        for kind in plan:
            count = 3 if kind == "hand" else 1
            for _ in range(count):
                x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)
                if is_captured and kind != "hand":
                    train(x, y, last=kind == "last")
                    continue
                with one.step.autocast():
                    loss = one.loss(x, y)
                one.step(loss, last=kind == "last")
            states.append(one.everything() if not one.step._num_losses else [])
        loops.append(states)
    for mine, other in zip(*loops, strict=True):
        assert same(mine, other)
    assert accelerator[-1].num_replayed > 8


def test_several_losses_optimizers_and_models_each_with_its_own_skips(accelerator):
    def make():
        torch.manual_seed(0)
        nets = [torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)]
        optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in nets]
        scale = DynamicLossScale(scale=8.0)
        return nets, TrainStep(optimizers, modules=nets, precision="fp16", loss_scale=scale, capture=True)

    data = [torch.ones(2, 3) * factor for factor in (1.0, 2.0, 3.0, 1.0, INF, 2.0)]
    (theirs, by_hand), (ours, step) = make(), make()
    train = step.capture(lambda x: [ours[0](x).pow(2).mean(), ours[1](torch.ones(2, 3)).mean()])
    outcomes = []
    undo = BUS.subscribe(StepOutcome, lambda event: outcomes.append(bool(event.stepped)))
    for x in data:
        result = train(x)
    undo()
    for x in data:
        with by_hand.autocast():
            losses = [theirs[0](x).pow(2).mean(), theirs[1](torch.ones(2, 3)).mean()]
        by_hand(losses)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.weight, other.weight)
    assert result.loss == pytest.approx(sum(float(one.detach()) for one in losses), rel=1e-3)
    assert outcomes == [True] * 8 + [False, True] + [True] * 2
    assert step.scaler.get_scale() == by_hand.scaler.get_scale() == 4.0


def test_the_functions_python_runs_while_warming_up_and_once_more(accelerator):
    loop = Loop()
    train = loop.step.capture(loop.loss)
    for x, y in batches(8, bad=()):
        train(x, y)
    assert loop.net.num_calls == 4
    assert train.is_captured


def test_every_step_is_published_once_with_its_loss(accelerator):
    loop, losses, scales = Loop(), [], []
    undos = [
        BUS.subscribe(BackwardEnded, lambda event: losses.append(event.roots[0].item())),
        BUS.subscribe(StepOutcome, lambda event: scales.append((float(event.scale), bool(event.stepped)))),
    ]
    train = loop.step.capture(loop.loss)
    results = [train(x, y) for x, y in batches(7, bad=(5,))]
    for undo in undos:
        undo()
    assert [str(one) for one in losses] == [str(one.loss) for one in results]
    assert scales == [(one.scale, one.stepped) for one in results]


def test_training_goes_on_from_a_checkpoint_and_records_anew(accelerator, tmp_path):
    data = list(batches(14, bad=(5,)))
    whole = Loop(schedule=True)
    train = whole.step.capture(whole.loss)
    for index, (x, y) in enumerate(data):
        train(x, y)
        if index == 7:
            save_checkpoint(tmp_path / "a", step=whole.step)
            assert "tensor" not in str(whole.step.state_dict()["optimizers"][0]["param_groups"])
    resumed = Loop(schedule=True)
    train = resumed.step.capture(resumed.loss)
    for x, y in data[:5]:
        train(x, y)
    load_checkpoint(tmp_path / "a", step=resumed.step)
    for x, y in data[8:]:
        train(x, y)
    assert same(resumed.everything(), whole.everything())
    assert accelerator[-1].num_warm_ups == 6


# ------------------------------------------------------------------ what a capture cannot be


def test_a_function_that_looks_at_numbers_is_not_captured_and_the_step_goes_on_by_hand(accelerator):
    loops = Loop(), Loop()
    train = loops[0].step.capture(lambda x, y: loops[0].loss(x, y) * float(y.abs().max()))
    data = list(batches(4, bad=()))
    for x, y in data[:3]:
        train(x, y)
    before = copy.deepcopy(loops[0].net.state_dict())
    with pytest.raises(SyncError):
        train(*data[3])
    assert same(loops[0].net.state_dict().values(), before.values())
    with loops[0].step.autocast():
        loss = loops[0].loss(*data[3])
    assert loops[0].step(loss).stepped


@pytest.mark.parametrize("is_accelerator", [True, False])
@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ((torch.ones(3, 4), 2), r"float32\[8, 4\] then, float32\[3, 4\] now.*drop_last=True"),
        ((torch.ones(8, 4).double(), 2), r"float32\[8, 4\] then, float64\[8, 4\] now"),
        ((torch.ones(8, 4), 3), "2 then, 3 now .only tensors may change."),
        ((2, torch.ones(8, 4)), r"float32\[8, 4\] then, 2 now .only tensors may change.; 2 then, float32\[8, 4\] now"),
        (([torch.ones(8, 4)], 2), "call it alike every time"),
    ],
)
def test_a_batch_unlike_the_first_is_refused_on_every_device(request, is_accelerator, arguments, remedy):
    if is_accelerator:
        request.getfixturevalue("accelerator")
    loop = Loop()
    train = loop.step.capture(lambda x, factor: (loop.net(x) * factor).sum())
    for _ in range(5):
        train(torch.ones(8, 4), 2)
    with pytest.raises(UsageError, match=remedy):
        train(*arguments)
    assert train(torch.ones(8, 4), 2).stepped


def test_an_array_in_a_tensors_place_is_refused():
    loop = Loop()
    train = loop.step.capture(lambda x, weights: (loop.net(x) * weights.item(0)).sum())
    with pytest.raises(UsageError, match=r"array.* cannot be told from another: give a tensor"):
        train(torch.ones(8, 4), np.ones(2))


def test_windows_are_not_mixed(accelerator):
    loop = Loop(window=2)
    train = loop.step.capture(loop.loss)
    data = list(batches(12, bad=()))
    for x, y in data[:9]:
        train(x, y)
    with loop.step.autocast():
        loss = loop.loss(*data[9])
    with pytest.raises(UsageError, match="end it with that, last=True"):
        loop.step(loss)
    with pytest.raises(UsageError, match="1 of 2 losses"):
        loop.step.state_dict()
    assert train(*data[10]).stepped
    with loop.step.autocast():
        loss = loop.loss(*data[9])
    loop.step(loss)
    with pytest.raises(UsageError, match=r"end it with step\(loss, last=True\)"):
        train(*data[11])


def test_the_mistakes_of_a_first_try_are_told(accelerator):
    loop = Loop()
    train = loop.step.capture(loop.loss)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UsageError, match="opens its own around the loss"):
        train(torch.ones(8, 4), torch.ones(8, 1))
    with pytest.raises(UsageError, match="an argument of the captured step requires a gradient"):
        loop.step.capture(loop.loss)(torch.ones(8, 4, requires_grad=True), torch.ones(8, 1))
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(UsageError, match=r"capture\(\) needs TrainStep\(..., capture=True\)"):
        TrainStep(torch.optim.SGD([weight]), precision="fp32").capture(weight.sum)
    with pytest.raises(UsageError, match="LBFGS has no capturable form; use Adam, AdamW or SGD made with fused=True"):
        TrainStep(torch.optim.LBFGS([weight]), precision="fp32", capture=True)
    with pytest.raises(UsageError, match="NAdam cannot skip a step on the device"):
        TrainStep(torch.optim.NAdam([weight]), precision="fp16", capture=True)


def test_an_optimizer_that_steps_a_graph_keeps_what_changes_on_the_device(accelerator):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.NAdam([weight], lr=0.5)
    (weight * 2).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    TrainStep(optimizer, precision="fp32", capture=True)
    assert optimizer.param_groups[0]["capturable"]
    assert optimizer.param_groups[0]["lr"].item() == 0.5


# ------------------------------------------------------------------ without graphs


def test_without_cuda_every_step_is_taken_as_ever(caplog):
    caplog.set_level("INFO", logger="ampwise")
    by_hand, captured = Loop(window=2, clip=0.1), Loop(window=2, clip=0.1)
    assert "cpu has no CUDA graphs: a captured step is taken as ever" in caplog.text
    train = captured.step.capture(captured.loss)
    losses = []
    for loop in (by_hand, captured):
        torch.manual_seed(3)
        for x, y in batches(9):
            if loop is captured:
                losses.append(train(x, y).loss_tensor)
                continue
            with loop.step.autocast():
                loss = loop.loss(x, y)
            loop.step(loss)
    assert same(captured.net.state_dict().values(), by_hand.net.state_dict().values())
    assert torch.equal(losses[-1], loss.detach())
    assert not train.is_captured
    assert isinstance(captured.step.optimizers[0].param_groups[0]["lr"], float)


def test_an_optimizer_that_evaluates_the_loss_is_not_captured():
    weight = torch.nn.Parameter(torch.ones(1))
    step = TrainStep(torch.optim.LBFGS([weight]), precision="fp32", capture=True)
    with pytest.raises(UsageError, match="LBFGS decides on the host how often it evaluates"):
        step.capture(weight.sum)
