"""Parameters below fp32 whose small updates are not lost."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call

import ampwise
from ampwise._base.errors import CannotRunError, UsageError
from ampwise.runtime.casts.small_updates import MASTER, keep_small_updates, keeper_of

BF16 = torch.bfloat16
OPTIMIZERS = {
    "sgd": lambda params, **options: torch.optim.SGD(params, lr=0.01, **options),
    "momentum": lambda params, **options: torch.optim.SGD(params, lr=0.01, momentum=0.9, **options),
    "adamw": lambda params, **options: torch.optim.AdamW(params, lr=0.001, **options),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=0.01),
}


def model(dtype=BF16):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(BF16)
    return net.to(dtype)


def batches(num):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 5, generator=generator) for _ in range(num)]


def backward(net, x):
    net(x.to(BF16)).float().square().mean().backward()


def train(net, optimizer, num=6):
    for x in batches(num):
        optimizer.zero_grad()
        backward(net, x)
        optimizer.step()


def reference(net, optimizer, num=6):
    """Training in fp32 whose weights are rounded to bf16 for each forward pass."""
    for x in batches(num):
        rounded = {name: p.detach().to(BF16).requires_grad_() for name, p in net.named_parameters()}
        functional_call(net, rounded, (x.to(BF16),)).float().square().mean().backward()
        for name, p in net.named_parameters():
            p.grad = rounded[name].grad.float()
        optimizer.step()


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", ["sgd", "momentum", "adamw", "adafactor"])
def test_with_master_weights_training_is_that_in_fp32_with_rounded_weights(name, options):
    if name == "adafactor" and options:
        pytest.skip("Adafactor has no such option")
    net, wide = model(), model(torch.float32)
    optimizer = OPTIMIZERS[name](net.parameters(), **options)
    same = OPTIMIZERS[name](wide.parameters(), **options)
    keep_small_updates(optimizer, "master")
    train(net, optimizer)
    reference(wide, same)
    for p, q in zip(net.parameters(), wide.parameters(), strict=True):
        assert torch.equal(optimizer.state[p][MASTER], q)
        assert torch.equal(p, q.to(BF16))
        assert p.grad.dtype is BF16


@pytest.mark.parametrize("updates", ["master", "stochastic"])
def test_updates_of_a_16th_of_an_ulp_move_the_weight(updates):
    ulp = 2.0**-7  # of bf16 at 1
    num, steps = 4096, 64
    param = nn.Parameter(torch.ones(num, dtype=BF16))
    optimizer = torch.optim.SGD([param], lr=ulp / 16)
    plain = nn.Parameter(torch.ones(num, dtype=BF16))
    lost = torch.optim.SGD([plain], lr=ulp / 16)
    keep_small_updates(optimizer, updates)
    for _ in range(steps):
        param.grad, plain.grad = -torch.ones_like(param), -torch.ones_like(plain)
        optimizer.step()
        lost.step()
    assert (plain == 1).all()
    moved = ((param.double().mean() - 1) / ulp).item()
    if updates == "master":
        assert moved == steps / 16
    # Hoeffding over num walks of steps: each step lies within one ulp; P(|mean - 4| > t) <= 2 exp(-2 num t^2 / steps)
    assert abs(moved - steps / 16) <= math.sqrt(math.log(2e9) * steps / (2 * num))


def test_chances_are_equal_for_equal_steps_and_leave_torchs_generators_alone():
    ends, state = [], torch.get_rng_state()
    for seed in (0, 0, 1):
        net = model()
        torch.set_rng_state(state)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        keep_small_updates(optimizer, "stochastic", seed=seed)
        train(net, optimizer)
        assert torch.equal(torch.get_rng_state(), state)
        ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_stochastic_state_stays_in_the_parameters_format():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    keep_small_updates(optimizer, "stochastic")
    train(net, optimizer, num=1)
    state = optimizer.state[net[0].weight]
    assert {key: value.dtype for key, value in state.items()} == {
        "step": torch.float32,
        "exp_avg": BF16,
        "exp_avg_sq": BF16,
    }


@pytest.mark.parametrize("updates", ["master", "stochastic"])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_a_checkpoint_goes_on_bit_for_bit(updates, name, tmp_path):
    net = model()
    optimizer = OPTIMIZERS[name](net.parameters())
    keep_small_updates(optimizer, updates)
    train(net, optimizer, num=3)
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
    train(net, optimizer, num=3)

    again = model()
    resumed = OPTIMIZERS[name](again.parameters())
    keep_small_updates(resumed, updates)
    loaded = torch.load(tmp_path / "c.pt")
    resumed.load_state_dict(loaded["optimizer"])  # in either order
    again.load_state_dict(loaded["model"])
    train(again, resumed, num=3)
    assert all(map(torch.equal, net.parameters(), again.parameters()))
    for p, q in zip(net.parameters(), again.parameters(), strict=True):
        assert optimizer.state[p].keys() == resumed.state[q].keys()
        for key, value in optimizer.state[p].items():
            assert value.dtype is resumed.state[q][key].dtype
            assert torch.equal(value, resumed.state[q][key])


def test_a_weight_that_somebody_wrote_becomes_its_master():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    keep_small_updates(optimizer, "master")
    train(net, optimizer, num=1)
    masters = [optimizer.state[p][MASTER].clone().add_(1e-6) for p in net.parameters()]
    for p, one in zip(net.parameters(), masters, strict=True):
        optimizer.state[p][MASTER] = one
    with torch.no_grad():
        net[0].weight[0, 0] = 9.0
    train(net, optimizer, num=1)
    assert net[0].weight[0, 0] == 9.0
    assert torch.equal(optimizer.state[net[0].weight][MASTER][1:], masters[0][1:])


class Broken(torch.optim.SGD):
    def step(self, closure=None):  # noqa: ARG002 # the signature of every step
        raise RuntimeError("full")


def test_an_error_within_a_step_leaves_no_wide_parameter_behind():
    net = model()
    params = list(net.parameters())
    optimizer = Broken(params, lr=0.1)
    keep_small_updates(optimizer, "master")
    backward(net, batches(1)[0])
    with pytest.raises(RuntimeError, match="full"):
        optimizer.step()
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], params, strict=True))
    assert {id(p) for p in optimizer.state} == {id(p) for p in params}
    with pytest.raises(KeyError):
        optimizer.load_state_dict({"state": {}})
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], params, strict=True))


def test_hooks_see_the_models_parameters_before_and_after_the_step():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    optimizer.register_step_pre_hook(lambda opt, *_: seen.append(opt.param_groups[0]["params"][0] is net[0].weight))
    keep_small_updates(optimizer, "master")
    before = net[0].weight.detach().clone()
    optimizer.register_step_post_hook(lambda *_: seen.append(not torch.equal(net[0].weight, before)))
    train(net, optimizer, num=1)
    assert seen == [True, True]


def test_a_closure_sees_the_models_parameters():
    net, other = model(), model()
    optimizer, plain = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, other))
    keep_small_updates(optimizer, "master")
    keep_small_updates(plain, "master")

    def closure():
        optimizer.zero_grad()
        loss = net(batches(1)[0].to(BF16)).float().square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        plain.zero_grad()
        backward(other, batches(1)[0])
        plain.step()
    assert all(map(torch.equal, net.parameters(), other.parameters()))


@pytest.mark.parametrize("first", ["schedule", "keep"])
def test_schedulers_stand_over_and_under_it(first):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if first == "keep":
            undo = keep_small_updates(optimizer, "master")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        if first == "schedule":
            undo = keep_small_updates(optimizer, "master")
        train(net, optimizer, num=1)
        scheduler.step()
        assert MASTER in optimizer.state[net[0].weight]
        undo()
        train(net, optimizer, num=1)
        scheduler.step()
    assert not optimizer.state


@pytest.mark.parametrize("updates", ["master", "stochastic"])
def test_undone_before_a_step_nothing_is_left(updates):
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    before = dict(vars(optimizer))
    hooks = [len(value) for value in before.values() if isinstance(value, dict)]
    keep_small_updates(optimizer, updates)()
    assert vars(optimizer) == before
    assert [len(value) for value in vars(optimizer).values() if isinstance(value, dict)] == hooks
    assert keeper_of(optimizer) is None


def test_undone_after_a_step_it_is_an_ordinary_optimizer():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    undo = keep_small_updates(optimizer, "master")
    train(net, optimizer)
    undo()
    train(net, optimizer)
    assert {value.dtype for key, value in optimizer.state[net[0].weight].items() if key != "step"} == {BF16}


def test_parameters_in_fp32_are_updated_as_ever():
    net, other = model(torch.float32), model(torch.float32)
    optimizer, plain = (torch.optim.AdamW(one.parameters()) for one in (net, other))
    keep_small_updates(optimizer, "stochastic")
    for one, opt in ((net, optimizer), (other, plain)):
        one(batches(1)[0]).square().mean().backward()
        opt.step()
    assert all(map(torch.equal, net.parameters(), other.parameters()))


def test_frozen_and_unused_parameters_get_no_master():
    net, idle = model(), nn.Parameter(torch.ones(2, dtype=BF16))
    optimizer = torch.optim.SGD([*net.parameters(), idle], lr=0.1)
    keep_small_updates(optimizer, "master")
    train(net, optimizer, num=1)
    assert idle not in optimizer.state
    assert optimizer.param_groups[0]["params"][-1] is idle


def test_a_scaled_step_that_overflows_moves_nothing():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    keep_small_updates(optimizer, "stochastic")
    scaler = ampwise.GradScaler("cpu")
    before = copy.deepcopy(net.state_dict())
    scaler.scale(net(batches(1)[0].to(BF16)).float().sum() * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("updates", ["master", "stochastic"])
def test_a_training_step_keeps_them_and_its_checkpoint_goes_on(updates, tmp_path, request, nothing_is_left_behind):
    plan = ampwise.Plan(default="bf16", parameters="bf16", updates=updates)

    def made():
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        step = ampwise.TrainStep(optimizer, modules=net, plan=plan, clip_grad_norm=1.0)
        request.addfinalizer(step.undo_plan)
        return net, optimizer, step

    def go(net, step):
        for x in batches(3):
            with step.autocast():
                loss = net(x).square().mean()
            step(loss)

    net, optimizer, step = made()
    go(net, step)
    ampwise.save_checkpoint(tmp_path / "c.pt", model=net, step=step)
    go(net, step)
    again, _, resumed = made()
    ampwise.load_checkpoint(tmp_path / "c.pt", model=again, step=resumed)
    go(again, resumed)
    assert all(map(torch.equal, net.parameters(), again.parameters()))
    assert (MASTER in optimizer.state[net[0].weight]) == (updates == "master")
    step.undo_plan()
    assert keeper_of(optimizer) is None


def test_what_cannot_be_is_refused():
    params = list(model().parameters())
    with pytest.raises(UsageError, match="LBFGS keeps a list of the parameters of its own"):
        keep_small_updates(torch.optim.LBFGS(params), "master")
    with pytest.raises(UsageError, match='"exact" is none of nearest, stochastic, master'):
        keep_small_updates(torch.optim.SGD(params), "exact")
    optimizer = torch.optim.SGD(params)
    undo = keep_small_updates(optimizer, "master")
    with pytest.raises(CannotRunError, match="this SGD's updates are kept already"):
        keep_small_updates(optimizer, "stochastic")
    undo()
    keep_small_updates(optimizer, "nearest")()
    assert "step" not in vars(optimizer)
