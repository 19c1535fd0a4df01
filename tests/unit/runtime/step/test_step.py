"""What a ``TrainStep`` does."""

import contextlib
import copy
import warnings

import pytest
import torch

from ampwise import TrainStep, apply_plan
from ampwise._base.errors import CannotRunError, UsageError
from ampwise.interpose.internal import is_hidden, is_internal
from ampwise.observe.events import BUS, BackwardEnded, BackwardStarted, StepOutcome, StepStarted
from ampwise.plan.plan import Plan
from ampwise.runtime.scaling.loss_scale import NoLossScale
from small_steps import INF, dynamic, sgd, weight_and_step

# ------------------------------------------------------------------ the sequence


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "auto"])
def test_one_loop_serves_every_precision(precision):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    step = TrainStep(
        torch.optim.SGD(model.parameters(), lr=0.1), modules=model, precision=precision, clip_grad_norm=9.0
    )
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    losses = []
    for _ in range(12):
        with step.autocast():
            out = model(x)
            loss = torch.nn.functional.mse_loss(out, y)
        result = step(loss)
        losses.append(loss.item())
        assert result.stepped
        assert result.scale == (65536.0 if step.precision == "fp16" else 1.0)
        assert 0.0 < result.grad_norm < 9.0
    assert losses[-1] < losses[0]
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[step.precision]
    assert out.dtype == expected
    assert model.weight.grad is None


def test_fp32_leaves_an_outer_autocast_out():
    model = torch.nn.Linear(2, 2)
    step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")
    with torch.autocast("cpu", dtype=torch.bfloat16), step.autocast():
        assert model(torch.ones(1, 2)).dtype is torch.float32


def test_a_window_steps_once_and_a_short_one_divides_by_its_own_number():
    for scale in (NoLossScale(), dynamic()):
        weight, step = weight_and_step(accumulation_steps=4, loss_scale=scale)
        results = [step((weight * factor).sum(), last=last) for factor, last in ((1, False), (2, False), (6, True))]
        assert [(one.is_update, one.stepped) for one in results] == [(False, False), (False, False), (True, True)]
        assert weight.item() == pytest.approx(1.0 - 3.0)
        assert not any(step((weight * 1).sum()).stepped for _ in range(3))
        assert step((weight * 1).sum()).stepped


def test_clipping_acts_on_unscaled_gradients():
    weight, step = weight_and_step(clip_grad_norm=2.0, loss_scale=dynamic())
    result = step((weight * 4).sum())
    assert (result.grad_norm, round(weight.item(), 4)) == (4.0, -1.0)
    weight, step = weight_and_step(clip_grad_value=0.5, loss_scale=dynamic())
    result = step((weight * 4).sum())
    assert (result.grad_norm, weight.item()) == (None, 0.5)
    weight, step = weight_and_step(clip_grad_norm=INF)
    assert (step((weight * 4).sum()).grad_norm, weight.item()) == (4.0, -3.0)


def test_a_skipped_step_says_so_and_changes_nothing_but_the_scale():
    weight, step = weight_and_step(loss_scale=dynamic())
    result = step((weight * INF).sum())
    assert (result.is_update, result.stepped, result.skipped, result.scale) == (True, False, True, 8.0)
    assert (weight.item(), weight.grad) == (1.0, None)
    assert (step((weight * 1).sum()).scale, weight.item()) == (4.0, 0.0)


def test_each_of_several_optimizers_is_skipped_alone():
    first, second = (torch.nn.Parameter(torch.tensor([1.0])) for _ in range(2))
    step = TrainStep(
        [torch.optim.SGD([one], lr=1.0) for one in (first, second)], precision="fp32", loss_scale=dynamic()
    )
    assert step((first * INF).sum() + second.sum()).skipped
    assert (first.item(), second.item()) == (1.0, 0.0)
    assert step(second.sum()).stepped  # the first has no gradient
    assert second.item() == -1.0


def test_several_losses_are_backpropagated_together():
    weight, step = weight_and_step(loss_scale=dynamic())
    step([(weight * 1).sum(), (weight * 2).sum()])
    assert weight.item() == -2.0


# ------------------------------------------------------------------ buffers


def norm_and_step(**options):
    model = torch.nn.BatchNorm1d(2)
    return model, TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=[model], precision="fp32", **options)


def forward(model, step, value):
    with step.autocast():
        return (model(torch.tensor([[value, 1.0], [2.0, 3.0]])) ** 2).sum()


def buffers(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def test_buffers_are_what_they_were_before_a_skipped_step_and_its_window():
    model, step = norm_and_step(loss_scale=dynamic(), accumulation_steps=2)
    step(forward(model, step, 1.0))
    step(forward(model, step, 1.0))
    before = buffers(model)
    step(forward(model, step, 5.0))
    assert step(forward(model, step, INF)).skipped
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])
    model.eval()
    assert torch.isfinite(model(torch.ones(1, 2))).all()


def test_buffers_of_a_real_step_stay_and_evaluation_saves_nothing():
    model, step = norm_and_step(loss_scale=dynamic())
    twin = copy.deepcopy(model)
    with torch.no_grad(), step.autocast():
        model.eval()(torch.ones(1, 2))
    model.train()
    model.load_state_dict({**model.state_dict(), "running_mean": torch.ones(2)})
    assert step(forward(model, step, INF)).skipped
    assert model.running_mean.tolist() == [1.0, 1.0]
    model.load_state_dict(twin.state_dict())
    assert step(forward(model, step, 1.0)).stepped
    forward(twin, step, 1.0)
    for mine, other in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(mine, other)


def test_a_buffer_that_was_replaced_is_put_back():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen = torch.cat([self.seen, x])
            return (self.weight * x).sum()

    model = Counter()
    step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=model, precision="fp32", loss_scale=dynamic())
    with step.autocast():
        loss = model(torch.tensor([INF]))
    assert step(loss).skipped
    assert model.seen.tolist() == [0.0]


# ------------------------------------------------------------------ schedulers


def test_schedulers_advance_on_real_steps_only_and_without_a_warning():
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    step = TrainStep(optimizer, schedulers=scheduler, precision="fp32", loss_scale=dynamic(), accumulation_steps=2)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (INF, 1.0, 1.0, 1.0, 1.0, 1.0):
            step((weight * factor).sum())
            rates.append(scheduler.get_last_lr()[0])
    assert rates == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]


# ------------------------------------------------------------------ closures


@pytest.mark.parametrize("scale", [NoLossScale(), dynamic()])
def test_lbfgs_takes_a_closure(scale):
    weight = torch.nn.Parameter(torch.tensor([0.0, 10.0]))
    step = TrainStep(torch.optim.LBFGS([weight], lr=0.5), precision="fp32", loss_scale=scale, clip_grad_norm=100.0)

    def closure():
        assert not is_hidden()
        with step.autocast():
            return ((weight - 3.0) ** 2).sum()

    for _ in range(5):
        assert step(closure).stepped
    assert torch.allclose(weight, torch.full((2,), 3.0), atol=1e-3)


def test_an_overflow_in_a_closure_skips_the_step():
    weight = torch.nn.Parameter(torch.tensor([0.0]))
    step = TrainStep(torch.optim.LBFGS([weight]), precision="fp32", loss_scale=dynamic())
    assert step((weight * INF).sum).skipped
    assert weight.item() == 0.0
    assert step.scaler.get_scale() == 4.0


@pytest.mark.parametrize("num_optimizers", [1, 2])
def test_a_closure_with_accumulation_or_several_optimizers_is_refused(num_optimizers):
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(num_optimizers)]
    step = TrainStep(
        [torch.optim.SGD([one], lr=1.0) for one in params], precision="fp32", accumulation_steps=3 - num_optimizers
    )
    with pytest.raises(UsageError, match="a closure steps one optimizer"):
        step(params[0].sum)


# ------------------------------------------------------------------ events


@pytest.fixture
def events():
    seen = []
    undos = [BUS.subscribe(kind, seen.append) for kind in (BackwardStarted, BackwardEnded, StepStarted, StepOutcome)]
    yield seen
    for undo in undos:
        undo()


def test_every_step_is_published_once_and_hidden_from_interceptors(events):
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    inside = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            inside.append((is_hidden(), is_internal()))
            return super().step(closure)

    optimizer = Watched([weight], lr=1.0)
    step = TrainStep(optimizer, precision="fp32", loss_scale=dynamic(), clip_grad_norm=2.0)
    losses = [(weight * factor).sum() for factor in (4.0, INF)]
    for loss in losses:
        step(loss)
    kinds = [type(one) for one in events]
    assert kinds == [BackwardStarted, BackwardEnded, StepStarted, StepOutcome] * 2
    assert events[0].roots == (losses[0],)
    assert [(one.optimizer, one.stepped, float(one.scale)) for one in events if isinstance(one, StepOutcome)] == [
        (optimizer, True, 8.0),
        (optimizer, False, 8.0),
    ]
    assert events[3].grad_norm.item() == 4.0
    assert inside == [(True, False)]
    assert not is_hidden()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_foreign_autocast_region_around_the_loop_changes_nothing(precision):
    results = []
    for region in (torch.autocast("cpu", dtype=torch.bfloat16), contextlib.nullcontext()):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.5), precision=precision)
        with region:
            for _ in range(3):
                with step.autocast():
                    loss = model(torch.ones(2, 4)).pow(2).mean()
                step(loss)
        results.append(model.weight.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("factor", [INF, float("nan")])
@pytest.mark.parametrize("steps", [1, 2])
def test_an_overflow_in_one_of_several_optimizers_clipped_together_spoils_none(factor, steps):
    first, second = (torch.nn.Parameter(torch.tensor([1.0])) for _ in range(2))
    optimizers = [torch.optim.SGD([first], lr=1.0), torch.optim.SGD([second], lr=1.0, weight_decay=0.5)]
    step = TrainStep(optimizers, precision="fp32", loss_scale=dynamic(), clip_grad_norm=1.0, accumulation_steps=steps)
    for index in range(steps):
        result = step((first * (factor if not index else 1.0)).sum() + second.sum())
    assert result.skipped
    assert (first.item(), second.item()) == (1.0, 1.0)
    assert step.scaler.get_scale() == 4.0


# ------------------------------------------------------------------ plans


@pytest.mark.parametrize(("plan", "is_scaled"), [("bf16", False), ("fp16", True), (Plan(default="fp16"), True)])
def test_a_plan_takes_the_place_of_a_precision(plan, is_scaled):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=model, plan=plan)
    seen = []
    handle = model[0].register_forward_hook(lambda *args: seen.append(args[2].dtype))
    loss = model(torch.randn(8, 4)).pow(2).mean()  # no autocast: the model carries the plan
    assert step(loss).stepped
    handle.remove()
    step.undo_plan()
    assert step.scaler.is_enabled() == is_scaled
    assert seen == [torch.float16 if is_scaled else torch.bfloat16]
    assert loss.dtype is torch.float32


def test_a_plan_needs_models_and_no_precision_beside_it():
    with pytest.raises(
        UsageError, match=r"no modules; .*modules=\[model\]; precision is 'bf16' and a plan is given; the plan says"
    ):
        TrainStep(sgd(), plan="bf16", precision="bf16")


def test_a_plan_that_one_of_two_models_cannot_bear_is_on_neither():
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    undo = apply_plan(second, "bf16")
    params = [*first.parameters(), *second.parameters()]
    with pytest.raises(CannotRunError):
        TrainStep(torch.optim.SGD(params, lr=0.1), modules=[first, second], plan="bf16")
    assert "forward" not in vars(first)
    undo()
    step = TrainStep(torch.optim.SGD(params, lr=0.1), modules=[first, second], plan="bf16")
    step.undo_plan()


def test_what_is_refused_leaves_no_plan_on_the_models():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong in ({"loss_scale": "dynamc"}, {"on_preemption": "last.ckpt"}):
        with pytest.raises(UsageError):
            TrainStep(optimizer, modules=model, plan="fp16", **wrong)
        assert "forward" not in vars(model)


# ------------------------------------------------------------------ kinds of training


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_gradient_penalty_is_torchs(precision):
    results = []
    for is_ours in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scale = dynamic() if precision == "fp16" else None
        step = TrainStep(optimizer, modules=model, precision=precision, loss_scale=scale)
        x = torch.randn(4, 3, requires_grad=True)
        for _ in range(3):
            with step.autocast():
                out = model(x)
            (slope,) = torch.autograd.grad(out.float().sum(), x, create_graph=True)
            with step.autocast():
                loss = out.float().mean() + (slope.norm(dim=1) - 1).pow(2).mean()
            if is_ours:
                step(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        results.append([param.detach() for param in model.parameters()])
    for mine, other in zip(*results, strict=True):
        assert torch.allclose(mine, other, atol=1e-3 if precision == "fp16" else 0)


def test_a_gan_has_a_step_for_each_of_its_optimizers():
    torch.manual_seed(0)
    generator, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    steps = [
        TrainStep(
            torch.optim.AdamW(one.parameters(), lr=0.01),
            modules=[generator, critic],
            precision="fp16",
            loss_scale=dynamic(),
        )
        for one in (critic, generator)
    ]
    before = [copy.deepcopy(one.state_dict()) for one in (critic, generator)]
    for _ in range(4):
        noise, real = torch.randn(8, 2), torch.randn(8, 2) + 2
        with steps[0].autocast():
            loss = critic(generator(noise).detach()).mean() - critic(real).mean()
        assert steps[0](loss).stepped
        with steps[1].autocast():
            loss = -critic(generator(noise)).mean()
        assert steps[1](loss).stepped
        critic.zero_grad()  # the generator's loss left gradients in it
    for one, old in zip((critic, generator), before, strict=True):
        assert not torch.equal(one.weight, old["weight"])


def test_data_parallel_is_the_model_itself_on_a_cpu():
    results = []
    for wrap in (torch.nn.DataParallel, lambda model: model):
        torch.manual_seed(0)
        model = wrap(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)))
        step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=model, precision="bf16")
        for _ in range(3):
            with step.autocast():
                loss = model(torch.randn(8, 2)).pow(2).mean()
            step(loss)
        results.append([param.detach() for param in model.parameters()])
    assert all(torch.equal(mine, other) for mine, other in zip(*results, strict=True))
