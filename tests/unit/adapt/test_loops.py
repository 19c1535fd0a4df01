"""The scheduler in the loops that people write: losses of every kind, several models, copies, devices, exceptions."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adapting import Blocks
from ampwise import CannotRunError, PrecisionScheduler, TrainStep


@pytest.mark.parametrize(
    "loss",
    [
        *(1, np.float32(1.0), torch.ones(1, 1, requires_grad=True), torch.tensor(1)),
        *(torch.tensor(1.0, dtype=one) for one in (torch.float16, torch.bfloat16, torch.float64)),
    ],
)
def test_a_loss_is_any_number(loss):
    with PrecisionScheduler(Blocks(), "bf16", triggers=["loss-spike"]) as scheduler:
        scheduler.step(loss)
        assert scheduler._state.triggers[0].losses == (1.0,)
        assert scheduler.step(10**400)[0].cause == "loss is inf"


def test_what_a_sample_of_the_results_lacks_is_seen_by_the_largest():
    model = torch.nn.Sequential(torch.nn.Linear(1, 10_001), torch.nn.Linear(10_001, 1))
    with torch.no_grad():
        model[0].weight.zero_()[1] = 5e4  # of every other one, say, a sample is taken
    with PrecisionScheduler(model, "fp16", groups=["0", "1"], triggers=["overflow-share"]) as scheduler:
        scheduler.step(model(torch.ones(1, 1)).sum())
        (switch,) = [one for one in scheduler.switches if one.group == "0"]
    assert switch.cause == "less than 0.01% of its results beyond the format, the largest 5e+04"


def test_nothing_is_copied_to_the_host_without_waiting_for_it():
    """Such a copy is read before it is there."""

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            given = (*args, *(kwargs or {}).values())
            if "copy" in op.name():
                assert not any(one is True for one in given), op
            return op(*args, **(kwargs or {}))

    model = Blocks()
    with PrecisionScheduler(model, "bf16", triggers=["nonfinite", "grad-norm-spike", "loss-spike"]) as scheduler:
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        with Copies():
            scheduler.step(loss.double())


def test_a_scheduler_is_no_thing_to_copy_and_a_copied_model_keeps_its_plan():
    model = Blocks()
    with PrecisionScheduler(model, "bf16") as scheduler:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(CannotRunError, match=r"save state_dict\(\), and give it to the load_state_dict"):
                copied(scheduler)
        with pytest.raises(CannotRunError, match="A copy of such a model keeps the plan for good"):
            PrecisionScheduler(copy.deepcopy(model), "bf16")


def test_a_model_that_was_moved_after_its_scheduler_was_made():
    model = Blocks()
    with PrecisionScheduler(model, "bf16", triggers=["loss-spike"]) as scheduler:
        model.to("meta")
        with pytest.raises(CannotRunError, match=r"moved to meta .* make the scheduler after model.to"):
            scheduler.step(1.0)


def test_two_models_that_train_against_each_other_move_each_for_itself():
    def stepping(model, scheduler):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        return TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=scheduler.loss_scale)

    maker, judge = Blocks(seed=1), Blocks(seed=2)
    judge.inp = torch.nn.Linear(1, 8)
    with PrecisionScheduler(maker, "bf16") as one, PrecisionScheduler(judge, "bf16") as two:
        steps = stepping(maker, one), stepping(judge, two)
        for index in range(4):
            made = maker(torch.ones(8, 4) * (math.nan if index == 2 else 1.0))
            loss = judge(made.detach() if index < 3 else torch.ones(8, 1)).square().mean()
            two.step(loss, steps[1](loss))
            loss = -judge(made).mean()
            one.step(loss, steps[0](loss))
    assert [(it.step, it.group) for it in one.switches] == [(3, "inp")]
    assert two.switches[0].step == 3  # later on, what the maker lost in the judge is seen there as well


def test_a_forward_that_raises_costs_its_own_step_alone():
    model = Blocks()
    with PrecisionScheduler(model, "fp16", triggers=["nonfinite", "overflow-share"]) as scheduler:
        for width in (4, 5, 4):
            try:
                loss = model(torch.ones(2, width)).mean()
            except RuntimeError:
                continue
            loss.backward()
            scheduler.step(loss)
        assert scheduler._num_steps == 2
        assert scheduler.switches == ()
    assert not torch.is_autocast_enabled("cpu")
