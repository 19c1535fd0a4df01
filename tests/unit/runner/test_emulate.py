"""An emulated precision, injected, is the loop written by hand under ``emulated``, with the recipe's autocast."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from ampwise._base.errors import CannotRunError
from ampwise.emulate.emulation import emulated
from ampwise.emulate.recipes import RECIPES
from ampwise.runner.choice import choose_once
from ampwise.runner.inject import inject
from ampwise.runner.spec import LaunchSpec, Lists
from ampwise.runner.summary import RunSummary, summary_lines

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, None: None}


def choose(name, device="cpu"):
    return choose_once(LaunchSpec(precision=name, emulate=name), device=torch.device(device))


def train(region=None, *, gain=1.0):
    """A loop whose forward pass runs in ``region``; without one it knows nothing of precision."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    x = torch.randn(32, 8) * gain
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        with region or nullcontext():
            out = net(x)
        loss = (out.float() - 1).square().mean() / 16  # so that fp16's first loss scale, 65536, already fits
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", RECIPES)
def test_the_losses_are_those_of_the_loop_by_hand(name):
    dtype = AUTOCAST[RECIPES[name].autocast]
    with emulated(name):
        by_hand = train(torch.autocast("cpu", dtype) if dtype else None)
    with inject(choice=choose(name), lists=Lists.STOCK) as injected:
        found = train()
    assert found == pytest.approx(by_hand, rel=1e-3 if name == "fp16" else 0, abs=0)
    assert found != train()
    assert injected.left_alone is None
    assert (injected.num_steps, injected.num_skipped) == (4, 0)


def test_only_fp16_gets_a_hidden_loss_scale():
    for name in RECIPES:
        with inject(choice=choose(name)) as injected:
            train()
            assert (injected.scale is not None) == (name == "fp16")


def test_a_step_that_overflows_is_skipped():
    with inject(choice=choose("fp16")) as injected:
        train(gain=1e5)
    assert injected.num_skipped == 4


def test_the_scripts_own_autocast_takes_over_and_stays_emulated():
    with inject(choice=choose("fp16")) as injected:
        train(torch.autocast("cpu", torch.float16))
        assert injected.left_alone is not None
        assert torch.nn.functional.avg_pool3d(torch.ones(1, 2, 2, 2).half(), 2).item() == 1  # torch alone has none
    with pytest.raises(RuntimeError, match="not implemented for 'Half'"):
        torch.nn.functional.avg_pool3d(torch.ones(1, 2, 2, 2).half(), 2)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_only_a_cpu_emulates(device):
    with pytest.raises(CannotRunError, match=f"the CPU is what emulates, and this run is on {device}; add"):
        choose("fp16", device)


def test_the_summary_says_that_it_was_emulated():
    choice = choose("fp16")
    assert (choice.label, choice.device, choice.slow_factor) == ("emulated fp16", "cpu", None)
    summary = RunSummary(
        precision=choice.precision,
        reason=choice.reason,
        device=choice.device,
        num_steps=1,
        step_ms_median=None,
        num_skipped=0,
        final_scale=None,
        allocator="system",
        emulated=choice.emulated,
    )
    assert summary_lines(summary)[0].startswith("emulated fp16 on cpu: asked for; autocast in fp16")
