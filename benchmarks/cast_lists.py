"""What CUDA's cast lists cost on a CPU, against the same hand-written torch.autocast with the CPU's own lists.

One process, the lists switched on and off in turn; processor time on one thread. The transformer's rows hold the
kernels' own cost and that of computing softmax, layer norm and mean in fp32; the operators' rows are tiny calls, where
the kernel is all there is.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from _common import Row, in_turn, publish, row_of
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ampwise.interpose.cast_lists import use_cuda_lists

CALLS = 1000


def transformer(width: int) -> Callable[[], None]:
    """One training step of a 4-layer transformer, precision written by hand."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(8, 128, width)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def repeated(call: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """``CALLS`` calls under autocast, so that a row's milliseconds are microseconds a call."""

    def step() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for _ in range(CALLS):
                call()

    return step


def cases() -> dict[str, Callable[[], None]]:
    low, wide, weight = torch.randn(2, 8).bfloat16(), torch.randn(2, 8), torch.ones(8)
    buffer, index, values = torch.zeros(2, 8), torch.tensor([0]), torch.ones(1, 8)
    operators = {
        "exp of bf16": low.exp,
        "exp of fp32": wide.exp,
        "softmax of bf16": lambda: low.softmax(-1),
        "softmax of fp32": lambda: wide.softmax(-1),
        "layer_norm of bf16": lambda: F.layer_norm(low, (8,), weight, weight),
        "layer_norm of fp32": lambda: F.layer_norm(wide, (8,), weight, weight),
        "mean of bf16": low.mean,
        "index_put_ of fp32": lambda: buffer.index_put_((index,), values),
        "relu, in no list": low.relu,
        "linear, in torch's list": lambda: F.linear(wide, wide),
    }
    return {
        "transformer, width 256": transformer(256),
        **{f"{name} (us)": repeated(call) for name, call in operators.items()},
    }


@contextmanager
def lists(*, on: bool) -> Iterator[None]:
    undo = use_cuda_lists("cpu") if on else lambda: None
    try:
        yield
    finally:
        undo()


def timed(step: Callable[[], None], *, on: bool) -> float:
    with lists(on=on):
        step()
        start = time.process_time()
        step()
        return (time.process_time() - start) * 1e3


def row(name: str, step: Callable[[], None], *, runs: int) -> Row:
    """The step with the lists against the step without, measured in turn."""
    ours, own = in_turn(lambda on: timed(step, on=on), runs=runs)
    goal = ">= 0.98" if name.startswith("transformer") else "reported"
    return row_of(name, ours, own, side="CUDA's lists", baseline="the CPU's own", goal=goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = 5 if arguments.quick else arguments.runs
    publish(
        "cast_lists",
        [row(name, step, runs=runs) for name, step in cases().items()],
        note=f"Processor time; operators: {CALLS} calls, so ms are us a call.",
    )


if __name__ == "__main__":
    main()
