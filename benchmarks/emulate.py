"""What a training step costs under emulation, against the same step in fp32.

One process, one thread, processor time, fp32 and the formats in turn. The goal for fp16 is 3x of fp32: torch's own fp16
kernels on a CPU take 10 to 130 times as long.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from _common import Row, publish
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ampwise import emulated
from ampwise.emulate.recipes import RECIPES

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
Step = Callable[[str], None]


def transformer(width: int, batch: int) -> Step:
    """Four causal layers, as char_gpt's."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(width, 256))
    x, y = torch.randn(batch, 128, width), torch.randint(0, 256, (batch, 128))
    return training(model, lambda: F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()))


def convolutions() -> Step:
    """A small network for images."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return training(model, lambda: F.cross_entropy(model(x).float(), y))


def training(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(name: str) -> None:
        dtype = _DTYPES.get(RECIPES[name].autocast or "") if name in RECIPES else None
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def timed(step: Step, name: str) -> float:
    with emulated(name) if name in RECIPES else nullcontext():
        step(name)
        start = time.process_time()
        step(name)
        return (time.process_time() - start) * 1e3


def rows(case: str, step: Step, *, runs: int) -> list[Row]:
    """One row a format, each run beside one of fp32."""
    names = ("fp32", *RECIPES)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(runs):
        for name in names if number % 2 else reversed(names):
            times[name].append(timed(step, name))
    return [_row(case, name, times[name], times["fp32"]) for name in RECIPES]


def _row(case: str, name: str, ours: list[float], fp32: list[float]) -> Row:
    ratios = [one / other for one, other in zip(ours, fp32, strict=True)]
    return Row(
        case=case,
        side=f"emulated {name}",
        baseline="fp32's time",
        ms=statistics.median(ours),
        baseline_ms=statistics.median(fp32),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        runs=len(ours),
        goal="<= 3" if name == "fp16" else "reported",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="fewer runs, smaller models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = 3 if arguments.quick else arguments.runs
    cases = {
        "transformer, width 64": transformer(64, 4),
        "convolutions": convolutions(),
        **({} if arguments.quick else {"transformer, width 384": transformer(384, 8)}),
    }
    found = [row for case, step in cases.items() for row in rows(case, step, runs=runs)]
    publish("emulate", found, note="Processor time of a step; ratios are emulation's time over fp32's.")


if __name__ == "__main__":
    main()
