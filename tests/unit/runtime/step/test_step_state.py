"""A ``TrainStep``'s state: saved, loaded, refused."""

import copy

import pytest
import torch

from ampwise import TrainStep
from ampwise._base.errors import RecordError, UsageError
from ampwise.runtime.scaling.loss_scale import DynamicLossScale
from small_steps import weight_and_step


def trained(precision, num_steps, *, state=None, model_state=None, first=0):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    scale = DynamicLossScale(scale=2.0**40, growth_interval=2) if precision == "fp16" else None
    step = TrainStep(optimizer, modules=model, schedulers=scheduler, precision=precision, loss_scale=scale)
    if state:
        model.load_state_dict(model_state)
        step.load_state_dict(state)
    for index in range(first, num_steps):
        with step.autocast():
            loss = (model(torch.full((2, 3), index + 1.0)) ** 2).mean()
        step(loss)
    return model, step


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_a_resumed_run_is_the_run_that_never_stopped(stop):
    whole, _ = trained("fp16", 30)
    model, step = trained("fp16", stop)
    saved = copy.deepcopy((step.state_dict(), model.state_dict()))
    resumed, step = trained("fp16", 30, state=saved[0], model_state=saved[1], first=stop)
    assert torch.equal(whole.weight, resumed.weight)
    assert step.scaler.get_scale() < 2.0**40


@pytest.mark.parametrize(("before", "after"), [("fp32", "fp16"), ("fp16", "bf16")])
def test_a_state_loads_into_another_precision(before, after):
    model, step = trained(before, 3)
    _, step = trained(after, 4, state=step.state_dict(), model_state=model.state_dict(), first=3)
    assert step.precision == after


def test_inside_a_window_saving_is_refused():
    weight, step = weight_and_step(accumulation_steps=2)
    step(weight.sum())
    with pytest.raises(UsageError, match="1 of 2 losses"):
        step.state_dict()
    step(weight.sum())
    step.state_dict()


def test_a_foreign_state_is_refused():
    _, step = weight_and_step()
    with pytest.raises(RecordError, match="it has no optimizers"):
        step.load_state_dict({})
    with pytest.raises(RecordError, match="2 optimizers, this TrainStep has 1"):
        step.load_state_dict({"optimizers": [{}, {}], "schedulers": []})


@pytest.mark.parametrize("state", [None, {}, {"state": {}, "param_groups": []}])
def test_a_state_of_something_else_is_refused(state):
    _, step = weight_and_step()
    with pytest.raises(RecordError, match=r"this is no state_dict\(\) of a TrainStep: it has no optimizers"):
        step.load_state_dict(state)
