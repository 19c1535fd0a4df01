"""Losses with a scale each: their gradients meet in shared parameters, and are right."""

import copy
import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from ampwise import GradScaler, TrainStep
from ampwise._base.errors import RecordError, UsageError
from ampwise.runtime.scaling.loss_scale import DynamicLossScale, HeadroomLossScale, StaticLossScale

INF = float("inf")
EXPONENTS = st.integers(-20, 20)


def shared_model():
    """A trunk that both losses train, and a head each."""
    torch.manual_seed(0)
    return torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in ("trunk", "large", "small")})


def losses_of(model, x):
    hidden = torch.tanh(model["trunk"](x))
    outputs = {name: model[name](hidden).float() for name in ("large", "small")}
    return {"large": outputs["large"].pow(2).mean() * 100, "small": outputs["small"].pow(2).mean() * 1e-6}


def gradients_one_by_one(model, x):
    """fp32 gradients, each loss's added to those before it."""
    twin = copy.deepcopy(model)
    for loss in losses_of(twin, x).values():
        loss.backward(retain_graph=True)
    return [param.grad for param in twin.parameters()]


@settings(max_examples=20)
@given(common=EXPONENTS, large=EXPONENTS, small=EXPONENTS)
def test_gradients_of_shared_parameters_are_those_without_scales(common, large, small):
    model, x = shared_model(), torch.linspace(-1, 1, 12).reshape(3, 4)
    scaler = GradScaler("cpu", loss_scale=StaticLossScale(scale=2.0**common))
    scales = {"large": StaticLossScale(scale=2.0**large), "small": StaticLossScale(scale=2.0**small)}
    scaler._named = type(scaler._named)(scales, None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for name, loss in losses_of(model, x).items():
        scaler.scale(loss, name).backward(retain_graph=True)
    scaler.unscale_(optimizer)
    for param, expected in zip(model.parameters(), gradients_one_by_one(model, x), strict=True):
        torch.testing.assert_close(param.grad, expected, rtol=1e-6, atol=0)
    assert not any(param._backward_hooks for param in model.parameters())


def test_with_powers_of_two_the_gradients_are_the_same_bits():
    model, x = shared_model(), torch.linspace(-1, 1, 12).reshape(3, 4)
    scaler = GradScaler("cpu", loss_scale={"large": 2.0**4, "small": 2.0**30})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for name, loss in losses_of(model, x).items():
        scaler.scale(loss, name).backward(retain_graph=True)
    scaler.unscale_(optimizer)
    for param, expected in zip(model.parameters(), gradients_one_by_one(model, x), strict=True):
        assert torch.equal(param.grad, expected)


def test_what_vanishes_at_one_scale_is_kept_by_a_scale_of_its_own():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def gradient(scaler, name):
        optimizer.zero_grad()
        hidden = weight.half()  # its gradient is fp16, where 2^-40 is zero
        scaler.scale((hidden.float() * 2.0**-40).sum(), name).backward()
        scaler.unscale_(optimizer)
        found = weight.grad.tolist()
        scaler.step(optimizer)
        scaler.update()
        return found

    assert gradient(GradScaler("cpu", init_scale=2.0**10), None) == [0.0] * 4
    scaler = GradScaler("cpu", loss_scale={"tiny": 2.0**40})
    assert gradient(scaler, "tiny") == [2.0**-40] * 4


def test_a_scale_moves_only_by_its_own_loss():
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer, scales = torch.optim.SGD([weight], lr=0.0), []
    for a, b in ((1.0, 1.0), (1.0, INF), (1.0, 1.0), (None, 1.0)):
        optimizer.zero_grad()
        for name, factor in (("a", a), ("b", b)):
            if factor is not None:
                scaler.scale((weight * factor).sum(), name).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append((scaler.get_scale("a"), scaler.get_scale("b"), scaler.get_scale(), scaler.last_step.skipped))
    assert scales == [
        (8.0, 8.0, 8.0, False),
        (16.0, 4.0, 8.0, True),
        (16.0, 4.0, 8.0, False),
        (16.0, 8.0, 8.0, False),
    ]


def test_losses_without_a_name_keep_the_common_scale_and_answer_for_themselves():
    scaler = GradScaler("cpu", init_scale=8.0)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for named, plain in ((INF, 1.0), (1.0, INF)):
        optimizer.zero_grad()
        scaler.scale((weight * named).sum(), "a").backward()
        scaler.scale((weight * plain).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.last_step.skipped
        assert scaler.get_scale("a") == 4.0
        assert scaler.get_scale() == (8.0 if named == INF else 4.0)


def test_headroom_measures_each_named_loss_by_itself():
    scaler = GradScaler("cpu", loss_scale={"a": "headroom", "b": HeadroomLossScale(num_deviations=0.0)})
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale((weight * 2.0**-3.5).sum(), "a").backward()
        scaler.scale((weight * 2.0**4.5).sum(), "b").backward()
        scaler.step(optimizer)
        scaler.update()
    assert (scaler.get_scale("a"), scaler.get_scale("b")) == (2.0**18, 2.0**10)


def test_their_scales_survive_a_checkpoint_a_pickle_and_a_copy():
    scaler = GradScaler("cpu", init_scale=8.0)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler.scale((weight * INF).sum(), "a").backward()
    scaler.step(optimizer)
    scaler.update()
    fresh = GradScaler("cpu", init_scale=8.0)
    fresh.load_state_dict(scaler.state_dict())
    for one in (fresh, pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert one.get_scale("a") == 4.0
        assert one.get_scale("b") == 8.0


def test_an_error_in_a_pass_leaves_no_hook_behind():
    scaler, weight = GradScaler("cpu", loss_scale={"a": 4.0}), torch.nn.Parameter(torch.ones(1))

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * 1

        @staticmethod
        def backward(*_):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        scaler.scale(Fails.apply(weight).sum(), "a").backward()
    scaler.scale(weight.sum()).backward()
    assert weight.grad.item() == 65536.0
    scaler.scale((weight * 3).sum(), "a").backward()
    assert weight.grad.item() == 4 * 65536.0


def test_sparse_complex_and_half_gradients_of_a_named_loss_are_in_the_common_scale():
    scaler = GradScaler("cpu", loss_scale={"a": 4.0})
    table = torch.nn.Embedding(4, 2, sparse=True)
    complex_ = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    low = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    loss = table(torch.tensor([1, 1])).sum() + complex_.real.sum() + low.sum().float()
    scaler.scale(loss, "a").backward()
    assert table.weight.grad.to_dense()[1].tolist() == [2 * 65536.0] * 2
    assert complex_.grad.tolist() == [65536.0] * 2
    assert low.grad.tolist() == [65536.0] * 2


def test_disabled_a_name_changes_nothing():
    scaler, weight = GradScaler("cpu", enabled=False), torch.nn.Parameter(torch.ones(1))
    scaler.scale(weight.sum(), "a").backward()
    assert weight.grad.item() == 1.0
    assert scaler.get_scale("a") == 1.0


def test_what_cannot_be_meant_is_refused():
    scaler, weight = GradScaler("cpu", loss_scale={"adversarial": 8.0}), torch.nn.Parameter(torch.ones(1))
    with pytest.raises(UsageError, match="was given a list; give one loss as a tensor"):
        scaler.scale([weight.sum()], "adversarial")
    with pytest.raises(UsageError, match='no loss named "advers"; those given a loss scale are "adversarial"'):
        scaler.scale(weight.sum(), "advers")
    with pytest.raises(UsageError, match="give one loss as a tensor"):
        scaler.scale([weight.sum()], "adversarial")
    with pytest.raises(RecordError, match="of kind"):
        scaler.load_state_dict({**scaler.state_dict(), "named": {"adversarial": {"kind": "odd"}}})


def test_reentrant_checkpointing_is_refused_and_the_other_kind_works():
    from torch.utils.checkpoint import checkpoint

    scaler, layer = GradScaler("cpu"), torch.nn.Linear(2, 1)
    x = torch.ones(1, 2, requires_grad=True)
    with pytest.raises(UsageError, match="use_reentrant=False"):
        scaler.scale(checkpoint(layer, x, use_reentrant=True).sum(), "a").backward()
    scaler.scale(checkpoint(layer, x, use_reentrant=False).sum(), "a").backward()
    assert layer.weight.grad.tolist() == [[65536.0, 65536.0]]


# ------------------------------------------------------------------ in a TrainStep


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_train_step_takes_losses_by_name(precision):
    model = shared_model()
    step = TrainStep(
        torch.optim.SGD(model.parameters(), lr=0.1),
        modules=model,
        precision=precision,
        clip_grad_norm=1.0,
        loss_scale={"large": 2.0**4, "small": "headroom"},
    )
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    for _ in range(2):
        with step.autocast():
            losses = losses_of(model, x)
        assert step(losses).stepped
    assert step.scaler.get_scale("small") == 2.0**24  # headroom's max_scale


def test_the_steps_parameters_are_those_of_fp32_trained_on_the_sum():
    results = []
    for names in (True, False):
        model = shared_model()
        scale = {"large": 2.0**4, "small": 2.0**30} if names else 2.0**8
        step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32", loss_scale=scale)
        for _ in range(3):
            losses = losses_of(model, torch.linspace(-1, 1, 12).reshape(3, 4))
            step(losses if names else tuple(losses.values()))
        results.append([param.detach() for param in model.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_train_steps_named_scales_go_with_its_state():
    model = shared_model()

    def made():
        return TrainStep(
            torch.optim.SGD(model.parameters(), lr=0.0),
            precision="fp32",
            loss_scale={"large": DynamicLossScale(scale=8.0), "small": DynamicLossScale(scale=4.0)},
        )

    step, fresh = made(), made()
    losses = losses_of(model, torch.ones(3, 4))
    step({**losses, "small": losses["small"] * INF})
    fresh.load_state_dict(step.state_dict())
    assert [fresh.scaler.get_scale(name) for name in ("large", "small")] == [8.0, 2.0]


@pytest.mark.parametrize(
    ("loss_scale", "told"),
    [("headrom", 'did you mean "headroom"'), ({"a": None}, "loss_scale is None"), ([1.0], r"loss_scale is \[1.0\]")],
)
def test_what_is_no_loss_scale_is_refused(loss_scale, told):
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(UsageError, match=told):
        TrainStep(torch.optim.SGD([weight], lr=1.0), precision="fp32", loss_scale=loss_scale)
    with pytest.raises(UsageError, match=told):
        GradScaler("cpu", loss_scale=loss_scale)
