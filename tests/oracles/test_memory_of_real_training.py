"""Real training on this CPU, its allocations counted by torch's profiler, holds what was predicted.

The GPU's choices are taken back for it: no fused or foreach optimizer, plain attention, no dropout.
"""

import gc

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from imagining import ResNet, imagining


class Gpt(nn.Module):
    """A character model as in examples/char_gpt.py, with its attention written out."""

    def __init__(self, width=64, num_heads=4, num_layers=2, num_words=96, length=32):
        super().__init__()
        self.num_heads = num_heads
        self.words, self.places = nn.Embedding(num_words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "mix": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "after": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(num_layers)
        )
        self.head = nn.Linear(width, num_words, bias=False)

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for layer in self.layers:
            parts = layer["mix"](layer["before"](x)).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
            q, k, v = (part.transpose(1, 2) for part in parts)
            weights = ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1)
            x = x + layer["out"]((weights @ v).transpose(1, 2).flatten(2))
            x = x + layer["down"](nn.functional.gelu(layer["up"](layer["after"](x))))
        return self.head(x)


def mlp(device):
    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return (
        nn.Sequential(*layers).to(device),
        torch.randn(512, 256).to(device),
        torch.zeros(512, dtype=torch.long).to(device),
    )


def gpt(device):
    words = torch.zeros(8, 32, dtype=torch.long).to(device)
    return Gpt().to(device), words, words


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
@pytest.mark.parametrize("make", [mlp, gpt, resnet])
def test_every_live_byte_is_accounted_for(make, kind):
    theirs, ours = real(make, kind), imagined_bytes(make, kind)
    for moment, (real_bytes, predicted) in enumerate(zip(theirs, ours, strict=True)):
        assert predicted == pytest.approx(real_bytes, rel=0.01), moment
