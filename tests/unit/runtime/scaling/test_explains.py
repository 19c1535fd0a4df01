"""What users are told when gradients overflow for ever: where, whose fault it is, and what to do."""

import warnings

import pytest
import torch

from ampwise import GradScaler, TrainStep
from ampwise.runtime.scaling.loss_scale import DynamicLossScale, HeadroomLossScale, StaticLossScale
from ampwise.runtime.scaling.overflow import HopelessOverflowError, LossScaleWarning

INF = float("inf")


class Model(torch.nn.Module):
    """Its second layer's gradient overflows, or its loss is not finite from a step on."""

    def __init__(self, fault):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        self.fault = fault
        if fault == "backward":
            self.second.weight.register_hook(lambda grad: grad * INF)

    def forward(self):
        out = self.second(self.first(torch.ones(1, 2))).sum()
        return out * INF if self.fault == "forward" else out


BACKWARD = ("first in: second.weight. The loss is finite, so the backward pass overflows fp16", "fp32 or bf16")
FORWARD = ("first in: first.weight, first.bias, second.weight, second.bias. The loss itself is", "forward pass made it")
MINIMUM = DynamicLossScale(scale=4.0, min_scale=4.0)
CASES = [
    ("backward", MINIMUM, 1, ("gradients overflow at the smallest loss scale, 4. ", *BACKWARD)),
    ("backward", HeadroomLossScale(scale=4.0, min_scale=4.0), 1, ("the smallest loss scale, 4. ", *BACKWARD)),
    (
        "backward",
        StaticLossScale(scale=8.0),
        50,
        ("the last 50 steps were all skipped; the loss scale is 8. ", *BACKWARD),
    ),
    ("forward", MINIMUM, 1, ("gradients overflow at the smallest loss scale, 4. ", *FORWARD)),
    ("forward", StaticLossScale(scale=8.0), 3, ("the loss was not finite at the last 3 steps. ", *FORWARD)),
    ("forward", DynamicLossScale(), 3, ("the loss was not finite at the last 3 steps. ", *FORWARD)),
]


@pytest.mark.parametrize(("fault", "loss_scale", "num_steps", "told"), CASES)
def test_a_train_step_raises(fault, loss_scale, num_steps, told):
    model = Model(fault)
    step = TrainStep(
        torch.optim.SGD(model.parameters(), lr=1.0), modules=model, precision="fp32", loss_scale=loss_scale
    )
    for _ in range(num_steps - 1):
        assert step(model()).skipped
    with pytest.raises(HopelessOverflowError) as error:
        step(model())
    for text in told:
        assert text in str(error.value)


def hand_written_loop(scaler, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler.protect(model)
    caught = []
    for _ in range(num_steps):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            optimizer.zero_grad()
            scaler.scale(model()).backward()
            scaler.step(optimizer)
            scaler.update()
        caught.append(found)
    return caught


@pytest.mark.parametrize(("fault", "loss_scale", "num_steps", "told"), CASES)
def test_the_drop_in_warns_once_at_the_users_line(fault, loss_scale, num_steps, told):
    caught = hand_written_loop(GradScaler("cpu", loss_scale=loss_scale), Model(fault), num_steps + 2)
    (found,) = [warning for found in caught for warning in found]
    assert caught[num_steps - 1] == [found]
    assert found.category is LossScaleWarning
    assert found.filename == __file__
    for text in told:
        assert text in str(found.message)


def test_a_second_row_of_skipped_steps_is_told_again():
    model = Model("forward")
    scaler = GradScaler("cpu")
    for fault, num_warnings in (("forward", 1), (None, 0), ("forward", 1)):
        model.fault = fault
        assert sum(map(len, hand_written_loop(scaler, model, 4))) == num_warnings


def test_one_bad_batch_is_skipped_without_a_word():
    model = Model(None)
    step = TrainStep(
        torch.optim.SGD(model.parameters(), lr=0.0), precision="fp32", loss_scale=StaticLossScale(scale=8.0)
    )
    for factor in [INF, INF, 1.0] * 4:
        assert step(model() * factor).skipped == (factor == INF)


def test_without_a_loss_that_it_saw_the_drop_in_says_where_to_look():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), GradScaler("cpu", loss_scale=MINIMUM)
    scaler.scale([weight * INF])[0].sum().backward()
    scaler.step(optimizer)
    with pytest.warns(LossScaleWarning, match=r"params'\]\[0\] of shape \(2,\)\. If the loss is NaN too"):
        scaler.update()
