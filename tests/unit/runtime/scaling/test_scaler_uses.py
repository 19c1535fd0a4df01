"""Loops that users write around a scaler: gradient penalty, DataParallel, bf16 gradients on a GPU."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwise import GradScaler, TrainStep
from ampwise.compat.scaler import unscale_and_check_
from ampwise.runtime.scaling.loss_scale import StaticLossScale


def penalised(model, x, scaler=None):
    """A loss with a penalty on its gradient's norm, as torch's AMP recipe takes it."""
    loss = model(x).pow(2).mean()
    scaled = loss if scaler is None else scaler.scale(loss)
    grads = torch.autograd.grad(scaled, list(model.parameters()), create_graph=True)
    inv_scale = 1.0 if scaler is None else 1.0 / scaler.get_scale()
    return loss + sum((grad * inv_scale).pow(2).sum() for grad in grads).sqrt()


def networks():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return model, copy.deepcopy(model), torch.randn(8, 3)


def test_a_gradient_penalty_is_that_of_fp32():
    model, twin, x = networks()
    optimizer, plain = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin))
    scaler = GradScaler("cpu", init_scale=2.0**10)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(penalised(model, x, scaler)).backward()
        scaler.step(optimizer)
        scaler.update()
        plain.zero_grad()
        penalised(twin, x).backward()
        plain.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_train_step_takes_a_gradient_penalty():
    model, twin, x = networks()
    step = TrainStep(
        torch.optim.SGD(model.parameters(), lr=0.1, fused=False),
        precision="fp32",
        loss_scale=StaticLossScale(scale=64.0),
    )
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, fused=False)
    for _ in range(3):
        assert step(penalised(model, x)).stepped
        plain.zero_grad()
        penalised(twin, x).backward()
        plain.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_model_in_a_data_parallel_is_protected_and_stepped():
    norm = torch.nn.BatchNorm1d(3)
    model = torch.nn.DataParallel(norm)  # without a GPU it calls the module, as on one GPU
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu")
    scaler.protect(model)
    for factor in (1.0, float("inf")):
        before = [one.clone() for one in norm.state_dict().values()]
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 3) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.last_step.skipped
    assert all(torch.equal(one, other) for one, other in zip(before, norm.state_dict().values(), strict=True))


def test_the_losses_that_a_data_parallel_gathers_may_be_scaled_together():
    weight = torch.nn.Parameter(torch.ones(2))
    scaler = GradScaler("cpu", init_scale=8.0)
    per_device = scaler.scale([weight.sum(), (weight * 3).sum()])
    torch.autograd.backward(per_device)
    assert weight.grad.tolist() == [32.0, 32.0]


class Calls(TorchDispatchMode):
    """The names of the operators called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dtype", "is_taken"), [(torch.float32, True), (torch.float16, True), (torch.bfloat16, False)])
def test_an_accelerators_kernel_is_never_given_the_bf16_gradients_it_refuses(dtype, is_taken):
    grads, found = [torch.ones(2, dtype=dtype, device="meta")], torch.zeros((), device="meta")
    with Calls() as calls:
        unscale_and_check_(grads, torch.ones((), device="meta"), found, may_overflow=False)
    assert ("_amp_foreach_non_finite_check_and_unscale_" in calls.names) == is_taken
    assert is_taken or {"_foreach_mul_", "isfinite"} & calls.names


@pytest.mark.parametrize("scaler_class", [torch.amp.GradScaler, GradScaler])
def test_an_optimizer_made_anew_in_every_step_is_no_second_one_of_the_step_before(scaler_class):
    scaler = scaler_class("cpu", init_scale=8.0, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(1))
    scales = []
    for _ in range(6):
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [8.0, 8.0, 16.0, 16.0, 16.0, 32.0]


@pytest.mark.parametrize("bad", [False, True])
def test_gradients_unscaled_before_the_update_of_another_optimizer_are_not_unscaled_again(bad):
    one, other = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    first, second = (torch.optim.SGD([param], lr=1.0) for param in (one, other))
    scaler = GradScaler("cpu", init_scale=256.0)
    for _ in range(2):  # the second finds nothing of the first
        scaler.scale((one + 2 * other).sum() * (float("inf") if bad else 1.0)).backward()
        for optimizer in (first, second):
            scaler.unscale_(optimizer)
        scaler.step(first)
        scaler.update()
        scaler.unscale_(second)  # as Accelerate does, which clips each model by itself
        scaler.step(second)
        scaler.update()
        for optimizer in (first, second):
            optimizer.zero_grad()
    assert (one.item(), other.item()) == ((1.0, 1.0) if bad else (-1.0, -3.0))
    assert scaler.get_scale() == (64.0 if bad else 256.0)


def test_an_optimizer_that_is_left_out_after_unscaling_is_unscaled_anew_in_the_next_step():
    one, other = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    first, second = (torch.optim.SGD([param], lr=1.0) for param in (one, other))
    scaler = GradScaler("cpu", init_scale=256.0)
    for steps in ((first,), (first, second)):
        scaler.scale((one + 2 * other).sum()).backward()
        for optimizer in (first, second):
            scaler.unscale_(optimizer)
        for optimizer in steps:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in (first, second):
            optimizer.zero_grad()
    assert (one.item(), other.item()) == (-1.0, -1.0)
