"""The casts of the weights last for a window of accumulation, and never longer than they are true."""

import gc
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwise import TrainStep
from ampwise.compat.autocast_cache import num_levels
from ampwise.runtime.scaling.loss_scale import StaticLossScale


class Casts(TorchDispatchMode):
    """Counts the casts of tensors of the weight's shape."""

    def __init__(self):
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and args[0].shape == (3, 5) and args[0].dtype is torch.float32:
            self.num += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def loop():
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)

    def make(precision="bf16", *, steps=3, **options):
        scale = StaticLossScale(scale=8.0) if precision == "fp16" else None
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        return layer, TrainStep(optimizer, precision=precision, accumulation_steps=steps, loss_scale=scale, **options)

    return make


def batch(layer, step, x=None):
    with step.autocast():
        loss = layer(torch.ones(2, 5) if x is None else x).float().pow(2).mean()
    return step(loss)


def by_hand(layer, batches, dtype):
    for x in batches:
        with torch.autocast("cpu", dtype=dtype):
            loss = layer(x).float().pow(2).mean()
        (loss / len(batches)).backward()


@pytest.mark.parametrize(("precision", "num_casts"), [("bf16", 1), ("fp16", 1), ("fp32", 0)])
def test_a_weight_is_cast_once_in_a_window(loop, precision, num_casts):
    layer, step = loop(precision)
    for _ in range(2):
        with Casts() as casts:
            for _ in range(3):
                batch(layer, step)
        assert casts.num == num_casts
        assert num_levels() == 0
        assert torch.is_autocast_cache_enabled()


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_gradients_are_those_of_the_loop_by_hand(loop, precision, dtype):
    layer, step = loop(precision)
    twin = torch.nn.Linear(5, 3)
    twin.load_state_dict(layer.state_dict())
    batches = [torch.randn(4, 5) for _ in range(3)]
    by_hand(twin, batches, dtype)
    for x in batches[:2]:
        batch(layer, step, x)
    grads = []
    step.optimizers[0].register_step_pre_hook(lambda *_: grads.extend(one.grad.clone() for one in layer.parameters()))
    batch(layer, step, batches[2])
    for mine, param in zip(grads, twin.parameters(), strict=True):
        assert torch.equal(mine / step.scaler.get_scale() if precision == "fp16" else mine, param.grad)


def tied(layer, x):
    """The weight used three times: as an embedding in fp32, twice, and cast."""
    lookups = torch.nn.functional.embedding(torch.tensor([0, 1, 2]), layer.weight)
    again = torch.nn.functional.embedding(torch.tensor([2, 0, 1]), layer.weight)
    return layer(x + lookups.sin() * again.exp())


def test_a_weight_with_other_uses_has_its_gradients_added_in_the_same_order(loop):
    layer, step = loop(steps=4)
    twin = torch.nn.Linear(5, 3)
    twin.load_state_dict(layer.state_dict())
    batches = [torch.randn(3, 5) for _ in range(4)]
    grads = []
    step.optimizers[0].register_step_pre_hook(lambda *_: grads.extend(one.grad.clone() for one in layer.parameters()))
    for x in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = tied(twin, x).float().pow(2).mean()
        (loss / 4).backward()
        with step.autocast():
            loss = tied(layer, x).float().pow(2).mean()
        step(loss)
    assert all(torch.equal(mine, param.grad) for mine, param in zip(grads, twin.parameters(), strict=True))


class Order(TorchDispatchMode):
    """The operators in their order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_whoever_watches_operators_finds_casts_by_when_they_were_made(loop):
    layer, step = loop()
    batch(layer, step)
    nodes = step._casts._nodes
    made = [node._sequence_nr() for node in nodes]
    assert len(made) == 2
    with Order():
        batch(layer, step)
    assert [node._sequence_nr() for node in nodes] == made
    batch(layer, step)
    assert all(node._sequence_nr() > before for node, before in zip(nodes, made, strict=True))


def test_a_write_within_a_forward_pass_is_seen_by_the_next(loop):
    layer, step = loop()

    class Writes(torch.nn.Module):
        def forward(self, x):
            out = layer(x)
            with torch.no_grad():
                layer.weight.mul_(2.0)
            return out

    batch(Writes(), step)
    with step.autocast():
        out = layer(torch.ones(2, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert torch.equal(out, layer(torch.ones(2, 5)))


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.add_(1.0),
        lambda weight: weight.copy_(torch.ones_like(weight)),
        lambda weight: setattr(weight, "data", torch.ones_like(weight)),
    ],
)
def test_a_weight_that_changed_within_the_window_is_cast_anew(loop, change):
    layer, step = loop()
    batch(layer, step)
    with torch.no_grad():
        change(layer.weight)
    with step.autocast():
        out = layer(torch.ones(2, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert torch.equal(out, layer(torch.ones(2, 5)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_region_within_the_window_gets_none_of_its_casts(loop, dtype):
    layer, step = loop()
    batch(layer, step)
    layer.weight.data.mul_(2.0)  # unseen by any version
    with torch.autocast("cpu", dtype=dtype):
        out = layer(torch.ones(2, 5))
    assert out.dtype is dtype
    assert torch.equal(
        out,
        torch.nn.functional.linear(torch.ones(2, 5).to(dtype), *(one.to(dtype) for one in (layer.weight, layer.bias))),
    )
    layer.weight.data.div_(2.0)


def test_validation_within_the_window_leaves_the_gradients_alone(loop):
    layer, step = loop()
    batch(layer, step)
    with torch.no_grad(), step.autocast():
        layer(torch.ones(2, 5))
    batch(layer, step)
    assert batch(layer, step).stepped
    assert num_levels() == 0


def test_validation_before_the_window_holds_nothing(loop):
    layer, step = loop()
    with torch.no_grad(), step.autocast():
        layer(torch.ones(2, 5))
    assert num_levels() == 0
    batch(layer, step)
    assert layer.weight.grad is not None


def test_a_window_that_never_ends_is_cleaned_up_with_its_step(loop):
    layer, step = loop()
    batch(layer, step)
    assert num_levels() == 1
    del step
    gc.collect()
    assert num_levels() == 0
    assert torch.is_autocast_cache_enabled()


def test_loading_a_state_ends_the_window(loop):
    layer, step = loop()
    state = step.state_dict()
    batch(layer, step)
    step.load_state_dict(state)
    assert num_levels() == 0


def test_a_forward_pass_that_fails_leaves_a_window_that_goes_on(loop):
    layer, step = loop()
    with pytest.raises(RuntimeError, match="shapes"), step.autocast():
        layer(torch.ones(2, 4))
    for _ in range(3):
        result = batch(layer, step)
    assert result.stepped
    assert num_levels() == 0


def test_an_outer_region_or_a_cache_switched_off_is_left_alone(loop):
    layer, step = loop()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            batch(layer, step)
            assert torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with Casts() as casts:
            for _ in range(3):
                batch(layer, step)
        assert casts.num == 3
        assert not torch.is_autocast_cache_enabled()
    finally:
        torch.set_autocast_cache_enabled(True)


def test_another_thread_holds_nothing_of_this_ones(loop):
    layer, step = loop()
    batch(layer, step)
    levels = []

    def other():
        batch(layer, step)
        levels.append((num_levels(), torch.is_autocast_cache_enabled()))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert levels == [(0, True)]
    assert batch(layer, step).stepped
    assert num_levels() == 0


def test_without_a_window_nothing_is_held(loop):
    layer, step = loop(steps=1)
    with step.autocast():
        loss = layer(torch.ones(2, 5)).sum()
    assert num_levels() == 0
    step(loss)
