"""The update group by group is torch's own sequence, bit for bit, or it leaves the update to it."""

import logging
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from ampwise import GradScaler, TrainStep
from ampwise.compat.fused_step import FusedGroup, begin_step
from ampwise.runtime.scaling.loss_scale import DynamicLossScale
from ampwise.runtime.step import update as module
from ampwise.runtime.step.update import ClippedUpdate

OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True, maximize=True, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.1, fused=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, fused=True),
}
INF = float("inf")
SHAPES = [(3, 7), (64,), (), (5, 33), (0,), (16,), (1001,)]


def parameters():
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    return params, [{"params": params[:3]}, {"params": params[3:], "lr": 0.003}]


def gradients(seed, exponent, scale):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 2.0**exponent * scale for shape in SHAPES]


def by_torch(params, optimizers, grads, *, scale, max_norm):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
    scaler.scale(torch.ones(1))
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    for optimizer in optimizers:
        scaler.step(optimizer)
    return norm


def by_group(params, optimizers, grads, *, scale, max_norm):
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    update = ClippedUpdate.plan(optimizers, params, scale=scale, max_norm=max_norm)
    if update is None:
        return None
    for optimizer in optimizers:
        update.step(optimizer)
    return update.norm


def state_of(optimizer):
    return [
        {name: value.tolist() for name, value in optimizer.state[param].items() if value is not None}
        for group in optimizer.param_groups
        for param in group["params"]
    ]


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 99), st.integers(-60, 18)), min_size=1, max_size=3),
    scale=st.sampled_from([1.0, 0.25, 1024.0, 65536.0, 2.0**40]),
    max_norm=st.sampled_from([1e-3, 1.0, 1e9, float("inf")]),
    part_bytes=st.sampled_from([64, 256, 1 << 20]),
)
def test_it_is_torchs_sequence_bit_for_bit(kind, steps, scale, max_norm, part_bytes):
    (theirs, theirs_groups), (ours, ours_groups) = parameters(), parameters()
    theirs_optimizer, ours_optimizer = OPTIMIZERS[kind](theirs_groups), OPTIMIZERS[kind](ours_groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART_BYTES", part_bytes)
        for seed, exponent in steps:
            grads = gradients(seed, exponent, scale)
            norm = by_group(ours, [ours_optimizer], grads, scale=scale, max_norm=max_norm)
            assert norm is not None
            assert torch.equal(norm, by_torch(theirs, [theirs_optimizer], grads, scale=scale, max_norm=max_norm))
            for mine, other in zip(ours, theirs, strict=True):
                assert torch.equal(mine, other)
                assert torch.equal(mine.grad, other.grad)
            assert state_of(ours_optimizer) == state_of(theirs_optimizer)


def test_a_tensor_of_tiny_gradients_has_torchs_norm():
    params, groups = parameters()
    grads = [grad * 1e-12 * 65536 for grad in gradients(0, 0, 1.0)]
    grads[1].mul_(1e-9)
    optimizer = OPTIMIZERS["sgd"](groups)
    norm = by_group(params, [optimizer], grads, scale=65536.0, max_norm=1e-30)
    assert torch.equal(norm, torch.nn.utils.get_total_norm([grad / 65536 for grad in grads]))


def test_two_optimizers_are_clipped_together():
    (theirs, _), (ours, _) = parameters(), parameters()
    grads = gradients(1, 2, 8.0)
    pairs = [[OPTIMIZERS["adamw"](one[:2]), OPTIMIZERS["momentum"](one[2:])] for one in (theirs, ours)]
    by_torch(theirs, pairs[0], grads, scale=8.0, max_norm=0.5)
    assert by_group(ours, pairs[1], grads, scale=8.0, max_norm=0.5) is not None
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


# ------------------------------------------------------------------ when it leaves the update to torch


def planned(optimizer, params, *, scale=8.0, grad=None):
    for param in params:
        param.grad = torch.ones_like(param) if grad is None else grad
    return ClippedUpdate.plan([optimizer], params, scale=scale, max_norm=1.0)


def one_param(dtype=torch.float32):
    return torch.nn.Parameter(torch.ones(2, dtype=dtype))


def hooked(param):
    optimizer = OPTIMIZERS["adamw"]([param])
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


class Own(torch.optim.AdamW):
    pass


@pytest.mark.parametrize(
    "make",
    [
        hooked,
        lambda param: torch.optim.AdamW([param]),
        lambda param: Own([param], fused=True),
        lambda param: torch.optim.Adagrad([param], fused=True),
        lambda param: torch.optim.AdamW([param], lr=torch.tensor(0.1), fused=True),
    ],
)
def test_only_a_fused_optimizer_of_torchs_nobody_looks_at_is_divided(make):
    param = one_param()
    assert planned(make(param), [param]) is None
    assert planned(OPTIMIZERS["adamw"]([param]), [param]) is not None


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
def test_what_is_not_finite_or_nearly_not_changes_nothing(value):
    param = one_param()
    optimizer = OPTIMIZERS["adamw"]([param])
    assert planned(optimizer, [param], grad=torch.tensor([1.0, value])) is None
    assert param.grad.tolist()[0] == 1.0
    assert not optimizer.state


@pytest.mark.parametrize("scale", [3.0, 1000.0, 2.0**-130])
def test_a_scale_that_rounds_is_left_to_torch(scale):
    param = one_param()
    assert planned(OPTIMIZERS["adamw"]([param]), [param], scale=scale) is None


def test_other_dtypes_are_left_to_torch():
    param = one_param(torch.float64)
    assert planned(OPTIMIZERS["adamw"]([param]), [param]) is None


def test_a_tensor_of_a_class_of_its_own_is_left_to_torch():
    class Shard(torch.Tensor):
        pass

    param = torch.nn.Parameter(torch.ones(2).as_subclass(Shard))
    assert planned(OPTIMIZERS["adamw"]([param]), [param]) is None


def test_half_a_first_step_of_momentum_is_left_to_torch():
    params = [one_param(), one_param()]
    optimizer = OPTIMIZERS["momentum"](params)
    params[0].grad = torch.ones(2)
    optimizer.step()
    assert planned(optimizer, params) is None


def test_parts_cover_everything_once():
    rows = [(torch.ones(size), torch.ones(size), torch.tensor(0.0)) for size in (16, 0, 40, 1, 1, 20)]
    group = FusedGroup(rows=rows, kernel=lambda *_, **__: None)
    for part in group.parts(num_bytes=64):
        for param, grad, step in part:
            assert param.shape == grad.shape
            param.add_(1)
            step.add_(1)
    assert [[one.numel() for one, _, _ in part] for part in group.parts(num_bytes=64)] == [
        [16],
        [0, 16],
        [16],
        [8, 1, 1, 16],
        [4],
    ]
    assert all((param == 2).all() for param, _, _ in rows)
    assert [step.item() for _, _, step in rows] == [1, 1, 3, 1, 1, 2]
    assert list(FusedGroup(rows=[], kernel=group.kernel).parts(num_bytes=12)) == []


def test_a_large_tensor_whose_memory_is_not_in_order_is_not_cut():
    row = (torch.ones(8, 8).t(), torch.ones(8, 8).t())
    assert [len(part) for part in FusedGroup(rows=[row], kernel=lambda *_: None).parts(num_bytes=64)] == [1]


def test_the_groups_have_the_parameters_with_gradients():
    params, groups = parameters()
    optimizer = OPTIMIZERS["adamw"](groups)
    params[4].grad = torch.zeros(0)
    assert [len(group.rows) for group in begin_step(optimizer)] == [0, 1]


# ------------------------------------------------------------------ in a TrainStep


def train(step, params, values):
    results = []
    for value in values:
        with step.autocast():
            loss = sum((param * value).sum() for param in params)
        results.append(step(loss))
    return results


def test_a_train_step_takes_it_counts_growth_and_skips_in_torchs_sequence(monkeypatch):
    calls = []
    original = ClippedUpdate.step
    monkeypatch.setattr(ClippedUpdate, "step", lambda self, optimizer: (calls.append(1), original(self, optimizer)))
    param = one_param()
    optimizer = torch.optim.AdamW([param], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    step = TrainStep(
        optimizer,
        schedulers=scheduler,
        precision="fp16",
        clip_grad_norm=1.0,
        loss_scale=DynamicLossScale(scale=8.0, growth_interval=2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = train(step, [param], [1.0, 1.0, float("inf"), 1.0])
    assert [one.stepped for one in results] == [True, True, False, True]
    assert [one.scale for one in results] == [8.0, 8.0, 16.0, 8.0]
    assert len(calls) == 3
    assert scheduler.last_epoch == 3
    assert results[0].grad_norm == pytest.approx(2.0**0.5)


def test_the_fused_kernel_is_chosen_logged_and_chosen_again_after_loading(caplog):
    param = one_param()
    plain = torch.optim.AdamW([param])
    state = plain.state_dict()
    with caplog.at_level(logging.INFO, logger="ampwise"):
        step = TrainStep(plain, precision="fp32")
    assert step.fused == (plain,)
    assert "AdamW is stepped by torch's fused kernel" in caplog.text
    step.load_state_dict({**step.state_dict(), "optimizers": [state]})
    assert plain.param_groups[0]["fused"] is True
    assert step.fused == (plain,)


@pytest.mark.parametrize("options", [{"fused": False}, {"foreach": True}, {"foreach": False}, {"capturable": True}])
def test_a_choice_of_the_scripts_stays(options):
    optimizer = torch.optim.AdamW([one_param()], **options)
    assert TrainStep(optimizer, precision="fp32").fused == ()
    assert not optimizer.param_groups[0]["fused"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_sparse_gradients_are_stepped_as_before(precision):
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    step = TrainStep(optimizer, precision=precision)
    torch.nn.init.ones_(table.weight)
    with step.autocast():
        loss = table(torch.tensor([1, 1])).sum()
    assert step(loss).stepped
    assert table.weight.tolist() == [[1, 1], [-1, -1], [1, 1], [1, 1]]
    assert step.fused == ()


OWN_CHOICE = {
    "adamw": lambda params, **options: torch.optim.AdamW(params, lr=0.1, **options),
    "sgd": lambda params, **options: torch.optim.SGD(params, lr=0.1, momentum=0.9, **options),
    "adagrad": lambda params, **options: torch.optim.Adagrad(params, lr=0.1, **options),
}


def image_weight(memory_format):
    torch.manual_seed(0)
    return torch.nn.Parameter(torch.randn(2, 3, 4, 4).contiguous(memory_format=memory_format))


def step_with(optimizer, weight, grad, **options):
    """One step whose gradient has the strides of ``grad``: a hook may set any."""
    step = TrainStep(optimizer, precision="fp32", **options)
    handle = weight.register_post_accumulate_grad_hook(lambda param: setattr(param, "grad", grad.clone()))
    step((weight * 1.0).sum())
    handle.remove()
    return step


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("kind", list(OWN_CHOICE))
def test_gradients_of_other_strides_are_stepped_right(kind, clip):
    grad = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    ours, theirs = image_weight(torch.channels_last), image_weight(torch.channels_last)
    step = step_with(OWN_CHOICE[kind]([ours]), ours, grad, clip_grad_norm=clip)
    assert step.fused == ()
    step_with(OWN_CHOICE[kind]([theirs], foreach=True), theirs, grad, clip_grad_norm=clip)
    assert torch.equal(ours, theirs)


def test_a_model_that_changed_its_memory_format_after_the_state_was_made_is_stepped_right():
    weights = [image_weight(torch.contiguous_format) for _ in range(2)]
    for weight, options in zip(weights, ({}, {"foreach": True}), strict=True):
        step = TrainStep(OWN_CHOICE["adamw"]([weight], **options), precision="fp32")
        step((weight * weight).sum())
        assert len(step.fused) == (not options)
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        step((weight * weight * weight).sum())
        assert step.fused == ()
    assert torch.allclose(*weights, rtol=1e-5)


def test_a_dimension_of_one_element_may_have_any_stride():
    weight = torch.nn.Parameter(torch.randn(4, 3, 1, 1).contiguous(memory_format=torch.channels_last))
    step = step_with(OWN_CHOICE["adamw"]([weight]), weight, torch.randn(4, 3, 1, 1))
    assert len(step.fused) == 1


def test_a_step_the_script_replaced_is_left_alone():
    optimizer = torch.optim.AdamW([one_param()])
    optimizer.step = lambda *_: None
    assert TrainStep(optimizer, precision="fp32").fused == ()


def first_steps(scaler, optimizer, weight):
    """Two steps, the first of which overflows; what lies in memory is made ugly before."""
    for factor in (INF, 1.0):
        dirt = [torch.full((1000,), 7e20) for _ in range(50)]
        del dirt
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize("options", [{"nesterov": True}, {"weight_decay": 0.1, "maximize": True}, {}])
def test_a_first_step_that_is_skipped_leaves_fused_sgd_no_momentum_of_what_lay_in_memory(options):
    weights = [torch.nn.Parameter(torch.ones(1000)) for _ in range(2)]
    for weight, fused in zip(weights, (True, False), strict=True):
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.75, fused=fused, **options)
        first_steps(GradScaler("cpu", init_scale=4.0), optimizer, weight)
    assert torch.equal(*weights)


def test_sgd_that_is_dampened_is_left_unfused():
    optimizer = torch.optim.SGD([one_param()], lr=0.1, momentum=0.9, dampening=0.5)
    assert TrainStep(optimizer, precision="fp32").fused == ()


@pytest.mark.parametrize("kind", list(OWN_CHOICE))
def test_a_fused_optimizer_of_the_scripts_own_that_would_step_wrongly_is_unfused_and_said(kind):
    grad = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    ours, theirs = image_weight(torch.channels_last), image_weight(torch.channels_last)
    with pytest.warns(UserWarning, match=r"\(fused=True\) is stepped unfused from here on.*wrong parameters") as said:
        step_with(OWN_CHOICE[kind]([ours], fused=True), ours, grad)
    assert said[0].filename == __file__
    step_with(OWN_CHOICE[kind]([theirs], foreach=True), theirs, grad)
    assert torch.equal(ours, theirs)
