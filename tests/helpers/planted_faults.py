"""Random stacks of linear layers with planted faults of range and of rounding, for the search of a plan.

Shared by the tests of ``tune`` and by ``benchmarks/tune.py``. An evaluation is a forward pass in the low format on a
batch that the ranking has not seen; its error is the distance of the output from fp32's.
"""

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, mse_loss, relu

from ampwise.tune.search import Unit

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Layer(nn.Module):
    """``norm(w x + b) - what the fault added``: in fp32 every fault is harmless."""

    def __init__(self, width: int, *, gain: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.gain, self.shift = gain, shift
        with torch.no_grad():
            self.linear.weight.mul_(gain)
            self.linear.bias.add_(shift * gain)

    def forward(self, x: Tensor, linear=None) -> Tensor:
        y = (linear or self.linear)(x).float()
        return relu((y / self.gain - self.shift) * 1.4)


class Net(nn.Module):
    """Layers in residual pairs, as many as ``num_layers``; some of them with a fault."""

    def __init__(self, num_layers: int, width: int, faults: dict[int, tuple[float, float]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for index in range(num_layers):
            gain, shift = faults.get(index, (1.0, 0.0))
            self.layers.append(Layer(width, gain=gain, shift=shift))

    def forward(self, x: Tensor, lower=None) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer_norm(x + layer(x, lower and lower(index, layer.linear)), x.shape[-1:])
        return x


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A net with its faults, in which format it is tried, and how far its output may be off."""

    net: Net
    planted: tuple[int, ...]
    low: torch.dtype
    tolerance: float
    ranking: Tensor
    held_out: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"layers.{index}.linear" for index in range(len(self.net.layers)))

    def error(self, kept: frozenset[str]) -> float:
        """Relative error of the output on the held-out batch, over the tolerance."""
        places = {int(name.split(".")[1]) for name in kept}

        def lower(index: int, linear: nn.Linear):
            return None if index in places else lambda x: in_low(linear, x, self.low)

        with torch.no_grad():
            exact, rounded = self.net(self.held_out), self.net(self.held_out, lower)
            relative = ((rounded - exact).norm() / exact.norm()).item()
        return relative / self.tolerance

    def units(self) -> tuple[Unit, ...]:
        """Ranked by (gradient x rounding error)^2 of each layer alone, on the ranking batch."""
        deltas, outputs = [], []

        def watch(_: int, linear: nn.Linear):
            def call(x: Tensor) -> Tensor:
                y = linear(x)
                y.retain_grad()
                outputs.append(y)
                deltas.append((in_low(linear, x, self.low) - y).detach())
                return y

            return call

        result = self.net(self.ranking, watch)
        mse_loss(result, torch.randn(result.shape, generator=torch.Generator().manual_seed(0))).backward()
        self.net.zero_grad()
        scores = [(y.grad * delta).square().sum().item() for y, delta in zip(outputs, deltas, strict=True)]
        overflows = [not delta.isfinite().all() for delta in deltas]
        rows = zip(self.names, scores, overflows, strict=True)
        return tuple(Unit(name=name, score=score, is_certain=bool(bad)) for name, score, bad in rows)


def in_low(linear: nn.Linear, x: Tensor, low: torch.dtype) -> Tensor:
    """The layer as hardware computes it: operands rounded, sums in fp32, the result rounded."""
    rounded = [one.to(low).float() for one in (x, linear.weight, linear.bias)]
    return nn.functional.linear(*rounded).to(low).float()


def planted(seed: int, *, width: int = 32) -> Planted:
    """One random net: 24 to 49 layers, 1 to 3 faults of range or rounding, a tolerance from 5e-3 to 5e-2."""
    draw = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        num_layers = draw.randint(24, 49)
        low = draw.choice(sorted(FORMATS))
        places = sorted(draw.sample(range(num_layers), draw.randint(1, 3)))
        faults = {place: _fault(draw, low) for place in places}
        net = Net(num_layers, width, faults)
        batches = torch.randn(2, 16, width)
    tolerance = 10 ** draw.uniform(-2.3, -1.3)
    return Planted(
        net=net,
        planted=tuple(places),
        low=FORMATS[low],
        tolerance=tolerance,
        ranking=batches[0],
        held_out=batches[1],
    )


def _fault(draw: random.Random, low: str) -> tuple[float, float]:
    """A gain that leaves fp16's range, or a shift that takes the format's digits."""
    if low == "fp16" and draw.random() < 0.5:
        return 10 ** draw.uniform(5, 7), 0.0
    digits = {"fp16": 11, "bf16": 8}[low]
    return 1.0, 2.0**digits * 10 ** draw.uniform(-1.5, 0.5)
