"""What users change between steps: parameter groups that come and go, rates, frozen parameters."""

import pytest
import torch

from ampwise import TrainStep
from ampwise._base.errors import UsageError
from ampwise.runtime.scaling.loss_scale import DynamicLossScale


def by_hand(model, optimizer, batches, grow, *, window, clip):
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for index, batch in enumerate(batches):
        if index == 2 * window:
            grow(model, optimizer)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(batch).float().pow(2).mean()
        scaler.scale(loss / window).backward()
        if (index + 1) % window == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def with_step(model, optimizer, batches, grow, *, window, clip):
    step = TrainStep(
        optimizer,
        modules=model,
        precision="fp16",
        clip_grad_norm=clip,
        accumulation_steps=window,
        loss_scale=DynamicLossScale(scale=256.0),
    )
    for index, batch in enumerate(batches):
        if index == 2 * window:
            grow(model, optimizer)
        with step.autocast():
            loss = model(batch).float().pow(2).mean()
        step(loss)


def add_a_layer(model, optimizer):
    torch.manual_seed(1)
    model.append(torch.nn.Linear(3, 3))
    optimizer.add_param_group({"params": list(model[-1].parameters()), "lr": 0.02})


def replace_a_layer(model, optimizer):
    torch.manual_seed(1)
    model[1] = torch.nn.Linear(5, 3)
    optimizer.param_groups.pop()
    optimizer.add_param_group({"params": list(model[1].parameters())})


@pytest.mark.parametrize("grow", [add_a_layer, replace_a_layer])
@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("with_nan", [False, True])
def test_a_group_added_while_training_is_trained_as_by_hand(grow, window, make, with_nan):
    torch.manual_seed(0)
    batches = list(torch.randn(6 * window, 8, 4))
    if with_nan:  # the new group's first step is skipped
        batches[2 * window] = batches[2 * window] * float("nan")
    ends = []
    for train, options in ((by_hand, {"fused": True}), (with_step, {})):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
        optimizer = make([{"params": list(part.parameters())} for part in model], lr=0.01, **options)
        train(model, optimizer, batches, grow, window=window, clip=0.1)
        ends.append(model.state_dict())
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_an_overflow_in_a_new_group_is_named():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(optimizer, modules=model, precision="fp16", loss_scale=DynamicLossScale(scale=1.0, min_scale=1.0))
    add_a_layer(model, optimizer)
    model[-1].weight.register_hook(lambda grad: grad * float("inf"))
    with step.autocast():
        loss = model(torch.ones(2, 4)).float().pow(2).mean()
    with pytest.raises(RuntimeError, match=r"first in: 2\.weight"):
        step(loss)


def test_state_of_a_group_that_is_gone_is_refused_where_torch_could_not_save_it():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.AdamW([{"params": one.parameters()} for one in model])
    step = TrainStep(optimizer, modules=model, precision="fp32")
    step(model(torch.ones(1, 2)).sum())
    gone = optimizer.param_groups.pop(0)
    with pytest.raises(UsageError, match="AdamW has state of 2 parameters that are in none of its groups any more"):
        step.state_dict()
    for param in gone["params"]:
        del optimizer.state[param]
    assert len(step.state_dict()["optimizers"][0]["param_groups"]) == 1
