"""What a ``TrainStep`` refuses, and what it says to those who write a loop for the first time."""

import pytest
import torch

from ampwise import TrainStep
from ampwise._base.errors import CannotRunError, UsageError
from ampwise.runtime.scaling.loss_scale import StaticLossScale
from ampwise.runtime.scaling.overflow import HopelessOverflowError
from small_steps import INF, dynamic, sgd, weight_and_step


@pytest.mark.parametrize(
    ("optimizers", "options", "faults"),
    [
        ((), {}, ["no optimizer is given"]),
        (torch.nn.Linear(1, 1), {}, ["a Linear; give torch.optim optimizers"]),
        ([sgd()] * 2, {}, ["an optimizer is given twice"]),
        (sgd(), {"modules": [sgd()]}, ["modules holds a SGD"]),
        (
            sgd(),
            {"clip_grad_norm": -1.0, "accumulation_steps": 0},
            ["clip_grad_norm is -1.0", "accumulation_steps is 0"],
        ),
        (sgd(), {"clip_grad_norm": 1.0, "clip_grad_value": 1.0}, ["are both given; give one"]),
        (sgd(), {"schedulers": torch.optim.lr_scheduler.StepLR(sgd(), 1)}, ["StepLR belongs to none"]),
        (
            sgd(),
            {"schedulers": [torch.optim.lr_scheduler.ReduceLROnPlateau(sgd())]},
            ["ReduceLROnPlateau needs a metric"],
        ),
        (sgd(), {"precision": "bf61"}, ["bf16"]),
    ],
)
def test_options_that_cannot_be_meant_are_named(optimizers, options, faults):
    with pytest.raises(UsageError) as error:
        TrainStep(optimizers, **{"precision": "fp32", **options})
    for fault in faults:
        assert fault in str(error.value)


def test_parameters_of_no_module_are_named_by_their_optimizer():
    params = [torch.nn.Parameter(torch.ones(2, dtype=torch.float16)) for _ in range(2)]
    optimizers = [torch.optim.SGD([one], lr=1.0) for one in params]
    place = r"param_groups\[0\]\['params'\]\[0\] of shape \(2,\)"
    with pytest.raises(UsageError, match=rf"optimizers\[0\]\.{place}, optimizers\[1\]\.{place}"):
        TrainStep(optimizers, precision="fp16")


def test_a_precision_the_device_lacks_is_refused():
    with pytest.raises(CannotRunError):
        TrainStep(sgd(), precision="tf32")


def test_fp16_parameters_are_named_before_the_first_step():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1).half())
    with pytest.raises(UsageError, match=r"float16: 1\.weight, 1\.bias\. .*model\.float\(\)"):
        TrainStep(torch.optim.SGD(model.parameters(), lr=1.0), modules=model, precision="fp16")


@pytest.mark.parametrize(
    ("loss", "remedy"),
    [
        (3.0, r"a float; give the loss as a tensor, without \.item\(\)"),
        (torch.ones((), requires_grad=True) * torch.ones(2), r"loss\.mean\(\)"),
        (torch.ones(()), r"no_grad\(\), was detached"),
        ([], "no loss"),
        (torch.ones((), requires_grad=True) * 2, "no parameter of the optimizers has a gradient"),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_refused_with_the_remedy(loss, remedy):
    _, step = weight_and_step()
    with pytest.raises(UsageError, match=remedy):
        step(loss)


def test_a_step_inside_autocast_is_refused():
    weight, step = weight_and_step(precision="bf16")
    with step.autocast(), pytest.raises(UsageError, match="called inside an autocast region"):
        step(weight.sum())


def test_overflow_at_the_minimum_raises_and_tells_where():
    weight, step = weight_and_step(loss_scale=dynamic(min_scale=4.0), modules=[])
    step((weight * INF).sum())
    with pytest.raises(HopelessOverflowError, match=r"smallest loss scale, 4\..*The loss itself is inf"):
        step((weight * INF).sum())


def test_endless_skips_raise_and_tell_the_backward_pass_from_the_forward():
    model = torch.nn.Linear(1, 1)
    model.weight.register_hook(lambda grad: grad * INF)
    step = TrainStep(
        torch.optim.SGD(model.parameters(), lr=1.0),
        modules=model,
        precision="fp32",
        loss_scale=StaticLossScale(scale=8.0),
    )
    for _ in range(49):
        assert step(model(torch.ones(1, 1)).sum()).skipped
    with pytest.raises(HopelessOverflowError, match=r"50 steps.*first in: weight\. The loss is finite"):
        step(model(torch.ones(1, 1)).sum())


def test_a_parameters_name_is_told_without_what_moves_a_terminal():
    model = torch.nn.Module()
    model.add_module("in\n\x1b[31m", torch.nn.Linear(1, 1, bias=False).half())
    with pytest.raises(UsageError, match=r"float16: in \.weight\. Training") as refused:
        TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=model, precision="fp16")
    assert "\x1b" not in str(refused.value)


# ------------------------------------------------------------------ what newcomers write


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"precision": None}, 'precision is None; give a name, as in precision="auto"'),
        ({"precision": torch.bfloat16}, 'precision is torch.bfloat16; give a name, as in precision="bf16"'),
        ({"accumulation_steps": 2.5}, "accumulation_steps is 2.5; give a whole number"),
        ({"accumulation_steps": "4"}, "accumulation_steps is '4'; give a whole number"),
        ({"clip_grad_norm": "1"}, "clip_grad_norm is '1'; give a number"),
        ({"clip_grad_value": float("nan")}, "clip_grad_value is nan; give a number"),
    ],
)
def test_options_of_the_wrong_kind_are_refused_with_what_to_write(options, remedy):
    with pytest.raises(UsageError) as error:
        weight_and_step(**options)
    assert remedy in str(error.value)


def test_none_is_no_module_and_no_scheduler_but_no_optimizer_either():
    _, step = weight_and_step(modules=None, schedulers=None)
    assert (step.modules, step.schedulers) == ((), ())
    with pytest.raises(UsageError, match="no optimizer is given"):
        TrainStep(None)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_loss_that_was_backpropagated_already_is_told_who_does_it(precision):
    weight, step = weight_and_step(precision=precision)
    with step.autocast():
        loss = (weight * weight).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time") as error:
        step(loss)
    assert error.value.__notes__ == [
        "A TrainStep runs the backward pass itself: remove loss.backward() before step(loss)."
    ]


def test_a_loss_made_outside_of_autocast_is_said_once_and_not_in_fp32():
    weight, step = weight_and_step(precision="bf16")
    with pytest.warns(UserWarning, match=r"not in bf16: put the forward pass") as said:
        step(weight.sum())
    assert said[0].filename == __file__
    step(weight.sum())
    weight, step = weight_and_step(precision="fp32")
    step(weight.sum())


def test_an_optimizer_that_evaluates_the_loss_itself_is_not_given_a_loss():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    step = TrainStep(torch.optim.LBFGS([weight]), precision="fp32")
    with step.autocast():
        loss = (weight * weight).sum()
    with pytest.raises(UsageError, match="LBFGS evaluates the loss itself: give step\\(\\) a function"):
        step(loss)
    assert weight.grad is None
