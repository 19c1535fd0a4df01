"""Outputs are torch.autocast's own, and the model is afterwards what it was before."""

import pytest
import torch
from torch import nn

import ampwise
from ampwise._base.errors import UsageError
from ampwise.plan.plan import Plan, Rule

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.fixture
def batches():
    return [(x, torch.zeros(5)) for x in torch.randn(3, 5, 4)]


def snapshot(model):
    return [
        {name: one.clone() for name, one in model.state_dict().items()},
        [module.training for module in model.modules()],
        [vars(module).get("forward") for module in model.modules()],
    ]


def same(one, other):
    return one[1:] == other[1:] and all(torch.equal(one[0][name], other[0][name]) for name in one[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_outputs_are_those_of_torchs_autocast(model, batches, precision):
    model[1].eval()  # frozen on purpose while the rest trains
    before = snapshot(model)
    outputs = [output for _, output in ampwise.evaluate(model, batches, precision=precision)]
    assert same(snapshot(model), before)
    model.eval()
    dtype = DTYPES[precision]
    with torch.inference_mode(), torch.autocast("cpu", dtype=dtype, enabled=precision != "fp32"):
        expected = [model(x) for x, _ in batches]
    assert all(one.dtype is dtype and torch.equal(one, other) for one, other in zip(outputs, expected, strict=True))


def test_between_batches_nothing_is_entered(model, batches):
    for (x, y), output in ampwise.evaluate(model, batches, precision="bf16"):
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_inference_mode_enabled()
        assert not model.training
        assert output.is_inference()
        assert x.shape == (5, 4)
        assert y.shape == (5,)
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_a_loop_that_is_left_or_raises_leaves_the_model_as_it_was(model, batches):
    before = snapshot(model)
    for _ in ampwise.evaluate(model, batches, precision="bf16"):
        break
    assert same(snapshot(model), before)

    def fail(_):
        raise KeyError

    with pytest.raises(KeyError):
        list(ampwise.evaluate(model, batches, precision="bf16", forward=fail))
    assert same(snapshot(model), before)


@pytest.mark.parametrize("kind", ["tensor", "dict", "list", "forward"])
def test_a_batch_is_handed_over_as_its_kind_asks(kind, batches):
    class Named(nn.Module):
        def forward(self, x):
            return x * 2

    x = batches[0][0]
    batch = {"tensor": x, "dict": {"x": x}, "list": [x, 1], "forward": {"other": x}}[kind]
    forward = (lambda one: one["other"] * 2) if kind == "forward" else None
    ((_, output),) = ampwise.evaluate(Named(), [batch], precision="fp32", forward=forward)
    assert torch.equal(output, x * 2)


def test_a_plan_holds_while_it_evaluates(model, batches):
    plan = Plan(default="bf16", rules=(Rule(module="3", compute="fp32"),))
    before = snapshot(model)
    outputs = [output for _, output in ampwise.evaluate(model, batches, plan=plan)]
    assert {one.dtype for one in outputs} == {torch.float32}
    assert same(snapshot(model), before)


def test_mistakes_are_named_before_the_first_batch(model):
    with pytest.raises(UsageError, match="bf61"):
        ampwise.evaluate(model, [], precision="bf61")
    with pytest.raises(UsageError, match="fp16-saef"):
        ampwise.evaluate(model, [], plan="fp16-saef")
    with pytest.raises(UsageError, match=r"a batch is a int.*forward="):
        list(ampwise.evaluate(model, [3], precision="fp32"))


def test_what_is_of_another_kind_is_named_all_at_once(model):
    with pytest.raises(UsageError, match=r'precision is None; give a name, as in precision="auto"'):
        ampwise.evaluate(model, [], precision=None)
    with pytest.raises(UsageError, match=r'torch.bfloat16; give a name, as in precision="bf16"'):
        ampwise.evaluate(model, [], precision=torch.bfloat16)
    with pytest.raises(
        UsageError, match=r"the model is a function; .*the loader is a int; .*forward is a str; give a function"
    ):
        ampwise.evaluate(lambda x: x, 3, forward="forward")


def test_trainings_gradients_go_on_afterwards(model, batches):
    list(ampwise.evaluate(model, batches, precision="bf16"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(batches[0][0]).float().sum().backward()
    assert all(one.grad is not None for one in model.parameters())
