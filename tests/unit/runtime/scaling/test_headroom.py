"""The scale that follows the gradients' size, in a loop: what it measures, keeps, saves, and never waits for."""

import copy
import pickle

import pytest
import torch

from ampwise import GradScaler, TrainStep, load_checkpoint, save_checkpoint
from ampwise._base.errors import UsageError
from ampwise.runtime.scaling.headroom import HeadroomLossScale
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

INF = float("inf")


def weight_and(optimizer_type=torch.optim.SGD, **options):
    weight = torch.nn.Parameter(torch.ones(3))
    return weight, optimizer_type([weight], lr=0.0, **options)


def train(scaler, weight, optimizer, factors, *, unscale=False):
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("options", [{}, {"fused": True}])
def test_it_is_the_value_fed_with_the_largest_unscaled_gradient(options, unscale):
    factors = [0.3, 0.01, INF, 5.0, 0.0, 300.0, 1e-6, 0.3]
    scaler, state = GradScaler("cpu", loss_scale="headroom"), HeadroomLossScale()
    weight, optimizer = weight_and(torch.optim.AdamW, **options)
    for factor in factors:
        train(scaler, weight, optimizer, [factor], unscale=unscale)
        state = state.adjust(factor < INF, torch.tensor(factor).item())
        assert scaler.get_scale() == state.scale
    assert state.scale != 2.0**16


def test_the_largest_gradient_of_all_optimizers_counts():
    scaler = GradScaler("cpu", loss_scale="headroom")
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [torch.optim.SGD([one], lr=0.0) for one in params]
    for _ in range(3):
        scaler.scale((params[0] * 2.0**2.5).sum() + (params[1] * 2.0**-9.5).sum()).backward()
        for one in optimizers:
            scaler.step(one)
        scaler.update()
        for one in optimizers:
            one.zero_grad()
    assert scaler.get_scale() == 2.0**12


def test_a_checkpoint_goes_on_as_if_it_had_never_stopped():
    factors = [0.3, 2.0, INF, 7.0, 0.1, 40.0, INF, 0.2, 3.0, 0.5]
    whole = GradScaler("cpu", loss_scale="headroom")
    expected = train(whole, *weight_and(), factors)
    for stop in range(1, len(factors)):
        scaler = GradScaler("cpu", loss_scale="headroom")
        train(scaler, *weight_and(), factors[:stop])
        fresh = GradScaler("cpu", loss_scale="headroom")
        fresh.load_state_dict(scaler.state_dict())
        for one in (fresh, pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
            assert train(one, *weight_and(), factors[stop:]) == expected
            assert one.state_dict() == whole.state_dict()


def test_it_takes_torchs_checkpoint_and_torch_takes_its_own():
    torchs = torch.amp.GradScaler("cpu", init_scale=64.0)
    ours = GradScaler("cpu", loss_scale="headroom")
    ours.load_state_dict(torchs.state_dict())
    assert ours.get_scale() == 64.0
    torchs.load_state_dict(ours.state_dict())
    GradScaler("cpu").load_state_dict(ours.state_dict())


def test_a_train_step_measures_where_it_clips_group_by_group_and_resumes(tmp_path):
    def made():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, TrainStep(
            optimizer, modules=model, precision="fp16", clip_grad_norm=1.0, loss_scale="headroom", accumulation_steps=2
        )

    def steps(step, model, indices):
        for index in indices:
            with step.autocast():
                loss = (model(torch.full((2, 3), index / 4)) ** 2).mean().float()
            step(loss)

    model, step = made()
    steps(step, model, range(16))
    assert step.scaler.get_scale() > 2.0**10
    assert float(step.scaler._memory.statistics[3]) > 0.006  # eight steps were measured
    stopped_model, stopped = made()
    steps(stopped, stopped_model, range(6))
    save_checkpoint(tmp_path / "last.ckpt", step=stopped)
    resumed_model, resumed = made()
    load_checkpoint(tmp_path / "last.ckpt", step=resumed)
    steps(resumed, resumed_model, range(6, 16))
    assert resumed.scaler.state_dict() == step.scaler.state_dict()
    assert torch.equal(resumed_model.weight, model.weight)


def test_options_beside_a_loss_scale_are_refused():
    with pytest.raises(UsageError, match="loss_scale= and init_scale, hysteresis are both given"):
        GradScaler("cpu", init_scale=4.0, hysteresis=2, loss_scale="headroom")
    assert not GradScaler("cpu", loss_scale="none").is_enabled()
    assert not GradScaler("cpu", enabled=False, loss_scale="headroom").is_enabled()
    assert GradScaler("cpu", loss_scale="rl").get_scale() == 2.0**12
    assert GradScaler("cpu", loss_scale=DynamicLossScale(scale=8.0, growth_interval=3)).get_growth_interval() == 3


# ------------------------------------------------------------------ the sample for the signs


def test_every_fiftieth_step_is_sampled_while_it_is_scaled():
    scaler, (weight, optimizer) = GradScaler("cpu", init_scale=2.0**4), weight_and()
    factors = torch.tensor([1.0, 2.0**-19, 0.0])
    train(scaler, weight, optimizer, [factors] * 101)
    rows = scaler.history().rows
    assert [row.step for row in rows if row.zero_share is not None] == [0, 50, 100]
    assert rows[0].zero_share == pytest.approx(1 / 3)
    assert rows[0].subnormal_share == pytest.approx(1 / 3)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_run_whose_gradients_vanish_shows_it_and_a_healthy_one_does_not(clip):
    def run(scale):
        torch.manual_seed(0)
        model = torch.nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        step = TrainStep(optimizer, modules=model, precision="fp16", clip_grad_norm=clip, loss_scale=scale)
        for _ in range(101):
            with step.autocast():
                loss = (model(torch.randn(4, 16)).float() * 1e-5).pow(2).sum() * 1e3
            step(loss)
        return step.scaler.signs()

    (sign,) = run(DynamicLossScale(scale=1.0))
    assert sign.kind == "underflow"
    assert run(DynamicLossScale(scale=2.0**20)) == ()
