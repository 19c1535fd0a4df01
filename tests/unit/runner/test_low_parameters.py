"""Parameters in bf16 in a script that knows nothing of it."""

import pytest
import torch
from torch import nn

from ampwise.plan.plan import Plan
from ampwise.runner.inject import inject
from ampwise.runner.script import RefusedRun
from ampwise.runtime.casts.small_updates import MASTER, keeper_of
from ampwise.runtime.hardware.device import Choice

BF16 = torch.bfloat16


def running(updates):
    plan = Plan(default="bf16", parameters="bf16", updates=updates)
    return inject(choice=Choice(precision="bf16", reason="", slow_factor=None, device="cpu"), plan=plan)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Linear(8, 2))


def train(net, optimizer, num=3):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(num):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("updates", ["nearest", "stochastic", "master"])
def test_parameters_are_cast_before_the_first_forward_and_given_back(updates):
    net = model()
    params = list(net.parameters())
    with running(updates):
        optimizer = torch.optim.AdamW(params, lr=1e-3)
        train(net, optimizer)
        assert [p.dtype for p in (net[0].weight, net[1].weight, net[2].weight)] == [BF16, torch.float32, BF16]
        assert net[0].weight.grad.dtype is BF16
        assert (keeper_of(optimizer) is not None) == (updates != "nearest")
        assert (MASTER in optimizer.state[params[0]]) == (updates == "master")
    assert all(p is q and p.dtype is torch.float32 for p, q in zip(net.parameters(), params, strict=True))
    assert keeper_of(optimizer) is None


def test_master_weights_begin_at_what_the_script_made():
    net = model()
    with running("master"):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        before = net[0].weight.detach().clone()
        train(net, optimizer)
        assert torch.equal(optimizer.state[net[0].weight][MASTER], before)
        assert torch.equal(net[0].weight, before.to(BF16))


def test_what_cannot_be_ends_the_run():
    net = model()
    with running("master"), pytest.raises(RefusedRun) as refused:
        torch.optim.LBFGS(net.parameters())
    assert "LBFGS keeps a list of the parameters" in str(refused.value.error)


@pytest.mark.parametrize("updates", ["nearest", "master"])
def test_a_second_optimizer_of_parameters_that_the_plan_cast_is_no_mixed_precision_of_the_scripts_own(updates):
    net = model()
    with running(updates) as injected:
        train(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
        second = torch.optim.AdamW(net.parameters(), lr=1e-4)
        train(net, second)
        assert injected.left_alone is None
        assert net[0].weight.dtype is BF16
        assert (keeper_of(second) is not None) == (updates == "master")


def test_parameters_that_the_script_cast_itself_are_its_own_beside_those_of_the_plan():
    net, own = model(), model().to(BF16)
    with running("nearest") as injected:
        train(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
        torch.optim.AdamW([*net.parameters(), *own.parameters()], lr=1e-3)
        assert "AdamW given bfloat16 parameters" in injected.left_alone
