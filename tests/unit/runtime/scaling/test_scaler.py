"""What ``GradScaler`` does where torch's fails, and what of torch's it keeps."""

import copy
import math
import pickle
import warnings

import pytest
import torch

from ampwise import GradScaler
from ampwise._base.errors import UsageError
from ampwise.runtime.scaling.loss_scale import DynamicLossScale, NoLossScale, StaticLossScale
from ampwise.runtime.scaling.scaler import LossScaleWarning

INF = float("inf")


def parameter(*values, dtype=torch.float32):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def sgd(*params, lr=1.0):
    return torch.optim.SGD(params, lr=lr)


def train_once(scaler, optimizer, factor=1.0):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    optimizer.zero_grad()
    scaler.scale(sum((param * factor).sum() for param in params)).backward()
    return scaler.step(optimizer)


# ------------------------------------------------------------------ where torch fails


def test_two_hundred_overflows_leave_the_smallest_useful_scale_and_warn_once():
    scaler, weight = GradScaler("cpu"), parameter(1.0)
    optimizer, overflow = sgd(weight), weight.register_hook(lambda grad: grad * INF)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(200):
            train_once(scaler, optimizer)
            scaler.update()
    overflow.remove()
    assert scaler.get_scale() == 2.0**-126
    assert [one.category for one in caught] == [LossScaleWarning]
    assert caught[0].filename == __file__
    assert "the last 50 steps were all skipped" in str(caught[0].message)
    assert "params'][0] of shape (1,). The loss is finite, so the backward pass" in str(caught[0].message)
    assert weight.item() == 1.0
    train_once(scaler, optimizer)
    assert scaler.last_step.stepped


@pytest.mark.parametrize(("fused", "factor"), [(False, 1.0), (True, 3e38)])
def test_at_a_denormal_scale_no_gradient_becomes_infinite_on_the_way_to_the_optimizer(fused, factor):
    scaler, weight = GradScaler("cpu", init_scale=2.0**-130), parameter(1.0, 2.0)
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=fused)
    optimizer.zero_grad()
    scaler.scale(weight.sum() * factor).backward()
    weight.grad *= 1.5  # 4.5e38 once it is unscaled
    scaler.step(optimizer)
    assert weight.tolist() == [1.0, 2.0]
    assert scaler.last_step.skipped
    with pytest.warns(LossScaleWarning):
        scaler.update()
    assert scaler.get_scale() == 2.0**-126


def test_update_takes_any_real_number():
    scaler, weight = GradScaler("cpu"), parameter(1.0)
    train_once(scaler, sgd(weight))
    scaler.update(1024)
    assert scaler.get_scale() == 1024.0
    scaler.update(torch.tensor(512.0))
    assert scaler.get_scale() == 512.0


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, INF, "8"])
def test_update_refuses_what_is_no_scale(scale):
    scaler = GradScaler("cpu")
    train_once(scaler, sgd(parameter(1.0)))
    with pytest.raises(UsageError, match="positive finite"):
        scaler.update(scale)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.bfloat16, torch.float64])
def test_gradients_of_every_kind_are_unscaled_and_checked(dtype):
    scaler, weight = GradScaler("cpu"), parameter(1.0, 2.0, dtype=dtype)
    optimizer = sgd(weight)
    for factor, expected in ((INF, [1.0, 2.0]), (1.0, [0.0, 1.0])):
        optimizer.zero_grad()
        scaler.scale((weight * factor).real.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.real.tolist() == expected


def test_fp16_parameters_are_named():
    half = parameter(1.0, 2.0, dtype=torch.float16)
    optimizer = torch.optim.SGD([("head.weight", half), ("head.bias", parameter(1.0))], lr=1.0)
    scaler = GradScaler("cpu")
    scaler.scale(half.float().sum()).backward()
    with pytest.raises(ValueError, match=r"Attempting to unscale FP16 gradients.*: head\.weight\..*fp32"):
        scaler.unscale_(optimizer)
    with pytest.raises(ValueError, match=r"param_groups\[0\]\['params'\]\[0\] of shape \(2,\)"):
        scaler_step_on(half)


def scaler_step_on(half):
    scaler = GradScaler("cpu")
    scaler.scale(half.float().sum()).backward()
    scaler.step(sgd(half))


def test_growth_is_counted_once_when_update_follows_each_of_two_optimizers():
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=3)
    optimizers = [sgd(parameter(1.0)), sgd(parameter(1.0))]
    scales = []
    for _ in range(4):
        for optimizer in optimizers:
            train_once(scaler, optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4.0, 4.0, 8.0, 8.0]


def test_a_second_optimizer_is_unscaled_with_the_scale_its_gradients_were_made_with():
    scaler, first, second = GradScaler("cpu", init_scale=4.0), parameter(1.0), parameter(1.0)
    optimizers = [sgd(first), sgd(second)]
    scaler.scale(first.sum() * INF + second.sum()).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
        scaler.update()
    assert (first.item(), second.item()) == (1.0, 0.0)
    assert scaler.last_step.scale == 4.0
    assert scaler.get_scale() == 2.0


def test_two_overflows_of_one_step_back_off_once():
    scaler, params = GradScaler("cpu", init_scale=4.0), [parameter(1.0), parameter(1.0)]
    optimizers = [sgd(param) for param in params]
    scaler.scale(sum(param.sum() for param in params) * INF).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0


def test_the_last_step_says_whether_it_stepped():
    scaler, optimizer = GradScaler("cpu"), sgd(parameter(1.0))
    assert scaler.last_step is None
    train_once(scaler, optimizer, INF)
    assert (scaler.last_step.stepped, scaler.last_step.skipped, scaler.last_step.scale) == (False, True, 65536.0)
    scaler.update()
    train_once(scaler, optimizer)
    scaler.update()
    assert (scaler.last_step.stepped, scaler.last_step.scale) == (True, 32768.0)


# ------------------------------------------------------------------ closures


def quadratic(weight, scaler, optimizer, *, overflows_at=None):
    calls = []

    def closure():
        calls.append(None)
        optimizer.zero_grad()
        loss = ((weight - 3.0) ** 2).sum()
        scaler.scale(loss * INF if len(calls) == overflows_at else loss).backward()
        return loss

    return closure


def test_lbfgs_converges_as_without_scaling():
    results = []
    for enabled in (True, False):
        weight = parameter(0.0, 10.0)
        scaler, optimizer = GradScaler("cpu", enabled=enabled), torch.optim.LBFGS([weight], lr=0.3, max_iter=5)
        for _ in range(3):
            scaler.step(optimizer, quadratic(weight, scaler, optimizer))
            scaler.update()
        results.append(weight.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("overflows_at", [1, 3])
def test_an_overflow_in_a_closure_puts_everything_back(overflows_at):
    weight = parameter(0.0, 10.0)
    scaler, optimizer = GradScaler("cpu"), torch.optim.LBFGS([weight], lr=0.3, max_iter=5)
    scaler.step(optimizer, closure=quadratic(weight, scaler, optimizer))
    scaler.update()
    before, state = weight.detach().clone(), copy.deepcopy(optimizer.state_dict())
    scaler.step(optimizer, quadratic(weight, scaler, optimizer, overflows_at=overflows_at))
    assert scaler.last_step.skipped
    assert torch.equal(weight, before)
    assert str(optimizer.state_dict()) == str(state)
    scaler.update()
    assert scaler.get_scale() == 32768.0


def test_a_closure_may_unscale_to_clip():
    weight = parameter(0.0)
    scaler, optimizer = GradScaler("cpu"), sgd(weight)

    def closure():
        optimizer.zero_grad()
        loss = (weight * 100).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_value_([weight], 1.0)
        return loss

    scaler.step(optimizer, closure)
    scaler.update()
    assert weight.item() == -1.0


def test_a_closure_that_makes_no_gradients_leaves_those_that_are_there():
    weight = parameter(5.0)
    scaler, optimizer = GradScaler("cpu"), sgd(weight)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    assert scaler.step(optimizer, lambda: 7.0) == 7.0
    assert weight.item() == 4.0


# ------------------------------------------------------------------ what of torch's it keeps


def test_it_is_one_of_torchs_and_has_its_private_names():
    scaler = GradScaler("cpu", init_scale=8.0)
    assert isinstance(scaler, torch.amp.GradScaler)
    assert scaler._scale is None
    assert scaler._growth_tracker is None
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    assert scaler._scale.item() == scaler._get_scale_async().item() == scaler._init_scale == 8.0
    assert dict(scaler._per_optimizer_states) == {}
    assert scaler._enabled
    scaler._check_scale_growth_tracker("step")
    weight = parameter(1.0)
    weight.grad = torch.tensor([4.0])
    found = scaler._unscale_grads_(sgd(weight), torch.tensor(0.25), torch.tensor(0.0), allow_fp16=False)
    assert (weight.grad.item(), found[torch.device("cpu")].item()) == (1.0, 0.0)
    assert scaler._check_inf_per_device(sgd(weight))[torch.device("cpu")].item() == 0.0


def test_disabled_it_passes_everything_through():
    scaler, weight = GradScaler("cpu", enabled=False), parameter(1.0)
    optimizer, loss = sgd(weight), torch.tensor(1.0)
    assert scaler.scale(loss) is loss
    weight.grad = torch.tensor([INF])
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == -INF
    assert (scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()) == (1.0, {}, False)
    assert scaler.last_step.stepped
    scaler.load_state_dict({})


def test_sparse_gradients_are_unscaled_and_checked():
    scaler, table = GradScaler("cpu"), torch.nn.Embedding(4, 2, sparse=True)
    optimizer, before = sgd(table.weight), table.weight.detach().clone()
    for factor, change in ((INF, 0.0), (1.0, 2.0)):
        optimizer.zero_grad()
        scaler.scale(table(torch.tensor([1, 1])).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.allclose(before[1] - table.weight[1], torch.full((2,), change))


def test_the_sum_of_duplicates_in_an_fp16_sparse_gradient_is_checked():
    scaler = GradScaler("cpu")
    twice = torch.sparse_coo_tensor(
        [[1, 1]], torch.tensor([64000.0, 64000.0]), (4,), dtype=torch.float16, check_invariants=True
    )
    table = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16).to_sparse())
    table.grad = twice
    found = scaler._unscale_grads_(sgd(table), torch.tensor(0.25), torch.tensor(0.0), allow_fp16=True)
    assert found[torch.device("cpu")].item() == 1.0


def test_it_is_pickled_and_copied_between_iterations():
    scaler, optimizer = GradScaler("cpu", growth_interval=5, min_scale=1.0, hysteresis=2), sgd(parameter(1.0))
    train_once(scaler, optimizer, INF)
    with pytest.raises(AssertionError, match="beginning"):
        pickle.dumps(scaler)
    scaler.update()
    for twin in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert twin.state_dict() == scaler.state_dict()
        train_once(twin, sgd(parameter(1.0)), INF)
        twin.update()
        assert twin.get_scale() == 32768.0  # the first overflow was remembered


def test_a_collapsed_checkpoint_of_torchs_is_raised_to_the_minimum():
    state = {"scale": 0.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 3}
    scaler = GradScaler("cpu")
    with pytest.warns(LossScaleWarning, match="loaded loss scale 0.0") as caught:
        scaler.load_state_dict(state)
    assert caught[0].filename == __file__
    train_once(scaler, sgd(parameter(1.0)))
    assert scaler.get_scale() == 2.0**-126


def test_misuse_is_refused_as_by_torch():
    scaler, optimizer = GradScaler("cpu"), sgd(parameter(1.0))
    with pytest.raises(AssertionError, match="scale"):
        scaler.step(optimizer)
    scaler.scale(torch.ones(()))
    with pytest.raises(AssertionError, match=r"No inf checks.*has a gradient"):
        scaler.step(optimizer)
    train_once(scaler, optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(optimizer, lambda: None)
    scaler.update()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.update()


@pytest.mark.parametrize("options", [{"min_scale": 0.0}, {"min_scale": 8.0, "max_scale": 4.0}, {"hysteresis": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError):
        GradScaler("cpu", **options)


# ------------------------------------------------------------------ from a loss scale


@pytest.mark.filterwarnings("ignore::ampwise.runtime.scaling.overflow.LossScaleWarning")
def test_a_loss_scale_makes_a_scaler_that_moves_by_its_rules():
    state = DynamicLossScale(scale=8.0, growth_interval=2, growth_tracker=1, max_scale=16.0, hysteresis=2)
    scaler, optimizer = GradScaler.from_loss_scale(state, device="cpu"), sgd(parameter(1.0))
    for factor in (1.0, INF, INF, INF, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        train_once(scaler, optimizer, factor)
        scaler.update()
        state = state.adjust(math.isfinite(factor))
        assert (scaler.get_scale(), scaler._get_growth_tracker()) == (state.scale, state.growth_tracker)


def test_a_static_scale_skips_but_does_not_move_and_none_is_off():
    scaler, weight = GradScaler.from_loss_scale(StaticLossScale(scale=8.0), device="cpu"), parameter(1.0)
    for factor in (INF, INF, 1.0):
        train_once(scaler, sgd(weight), factor)
        scaler.update()
        assert scaler.get_scale() == 8.0
    assert weight.item() == 0.0
    assert not GradScaler.from_loss_scale(NoLossScale(), device="cpu").is_enabled()
