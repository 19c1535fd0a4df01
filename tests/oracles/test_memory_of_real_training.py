"""Real training on this CPU, its allocations counted by torch's profiler, holds what was predicted.

The GPU's choices are taken back for it: no fused or foreach optimizer, no dropout.
"""

import gc

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from imagining import ResNet, imagining


def mlp(device):
    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return (
        nn.Sequential(*layers).to(device),
        torch.randn(512, 256).to(device),
        torch.zeros(512, dtype=torch.long).to(device),
    )


def resnet(device):
    net = ResNet(depths=(1, 1), width=16, num_classes=10).to(device)
    return net, torch.randn(4, 3, 64, 64).to(device), torch.zeros(4, dtype=torch.long).to(device)


def steps(made, kind, at):
    """Two steps; ``at`` is told of the bytes' moments."""
    net, x, y = made
    optimizer = kind(net.parameters(), lr=0.01, foreach=False)
    for _ in range(2):
        logits = net(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
        at("forward")
        loss.backward()
        at("backward")
        optimizer.step()
        optimizer.zero_grad()
        del logits, loss
        at("step")


def real(make, kind):
    """Live bytes at each moment, by the profiler's count of allocations and frees."""
    gc.collect()
    moments = []

    def at(name):
        with torch.profiler.record_function(f"moment {name}"):
            pass
        moments.append(name)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        steps(make("cpu"), kind, at)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    live, found = 0, []
    for event in events:
        if event.name() == "[memory]":
            live += event.nbytes()
        elif event.name().startswith("moment "):
            found.append(live)
    assert len(found) == len(moments)
    return found


def imagined_bytes(make, kind):
    found = []
    with imagining(is_watched=False) as imagination:
        ledger = imagination.ledger
        steps(make("cuda"), kind, lambda _: found.append(sum(one.num_bytes for one in ledger.alive())))
    return found


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("make", [mlp, resnet])
def test_every_live_byte_is_accounted_for(make, kind):
    theirs, ours = real(make, kind), imagined_bytes(make, kind)
    for moment, (real_bytes, predicted) in enumerate(zip(theirs, ours, strict=True)):
        assert predicted == pytest.approx(real_bytes, rel=0.01), moment
