"""A plan leaves nothing else on the model, whatever others do to it meanwhile."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

from ampwise._base.errors import CannotRunError
from ampwise.plan.plan import Updates
from ampwise.plan.presets import presets
from ampwise.runtime.casts.autocast import autocast
from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
from ampwise.runtime.casts.small_updates import keeper_of
from planned_nets import Quiet, net, plan, same_state, state_of

NOT_TORCHS = {"fp8", "bf16-pure"}
"""Presets that torch alone cannot carry out."""


@pytest.mark.parametrize("name", sorted(presets().keys() - NOT_TORCHS))
@pytest.mark.filterwarnings("ignore:plan. no module for")  # presets name modules that this model lacks
def test_apply_then_undo_leaves_the_model_as_it_was(name, x):
    model = net(Quiet)
    before, signature, keys = state_of(model), inspect.signature(model.forward), [*model.state_dict()]
    plain = model(x)
    undo = apply_plan(model, name)
    assert inspect.signature(model.forward) == signature
    assert [*model.state_dict()] == keys
    assert torch.allclose(model(x), plain, atol=0.05)
    undo()
    undo()
    assert same_state(before, state_of(model))
    assert torch.equal(model(x), plain)


def test_a_copy_and_a_pickle_carry_the_plan_with_their_own_weights(x):
    model = net(Quiet)
    undo = apply_plan(model, plan({"op": "softmax", "compute": "fp32"}, {"module": "wo", "compute": "fp32"}))
    expected = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), expected)
        with torch.no_grad():
            twin.wo.weight.zero_()
        assert not torch.equal(twin(x), expected)
    undo()
    assert torch.equal(model(x), net(Quiet)(x))


def through(function):
    def wrapper(self, x):
        return function(self, x)

    return wrapper


class Decorated(nn.Module):
    """Its forward is called otherwise than the attribute that it is."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    @through
    def forward(self, x):
        return self.inner(x)

    def slow(self, x):
        return self.inner(x) + 1


@pytest.mark.parametrize("forward", ["its class's", "another method"])
def test_a_pickle_has_the_forward_that_there_was_whatever_its_name(forward, x):
    model = net(Decorated)
    if forward == "another method":
        model.forward = model.slow
    undo = apply_plan(model, plan())
    expected = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.forward is not model.forward
        assert torch.equal(twin(x), expected)
        with torch.no_grad():
            twin.inner.weight.zero_()
        assert not torch.equal(twin(x), expected)
    undo()
    with autocast("cpu", plan=plan(), model=model):
        twins = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert all(torch.equal(twin(x), model(x)) for twin in twins)


def test_a_replica_computes_with_its_own_weights(x):
    model = nn.Linear(4, 4)
    undo = apply_plan(model, plan())
    replica = model._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(4, 4), torch.zeros(4)
    assert replica(x).abs().sum() == 0
    undo()
    assert torch.equal(replica(x), torch.zeros(3, 4))


def test_a_forward_of_somebody_elses_over_ours_is_left(x):
    model = nn.Linear(4, 4)
    plain = model(x)
    undo = apply_plan(model, plan())
    ours = model.forward
    model.forward = lambda x: ours(x) + 1
    undo()
    assert torch.equal(model(x), plain + 1)


def test_a_forward_of_somebody_elses_under_ours_comes_back(x):
    model = nn.Linear(4, 4)
    theirs = model.forward = lambda x: nn.Linear.forward(model, x) + 1
    with plan_in_effect(model, plan()):
        assert model.forward is not theirs
    assert model.forward is theirs


def test_updates_are_kept_by_the_optimizer_that_is_named(x):
    model = net().bfloat16()
    with pytest.raises(CannotRunError, match='updates = "stochastic" is for the optimizer to do; name it too'):
        apply_plan(model, "bf16-pure")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    undo = apply_plan(model, "bf16-pure", optimizers=optimizer)
    assert keeper_of(optimizer) is not None
    undo()
    assert keeper_of(optimizer) is None
    broken = plan({"module": "wo", "compute": "fp8"}, parameters="bf16", updates=Updates.MASTER)
    with pytest.raises(CannotRunError):
        apply_plan(model, broken, optimizers=[optimizer])
    assert keeper_of(optimizer) is None
