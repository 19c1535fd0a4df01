"""A whole training step, TrainStep beside the loop written by hand with torch.amp: clipping and accumulation windows.

Both loops are in one process, so they share the allocator's setting, which is ampwise's, see the same batches and use
the same fused AdamW. Their losses are compared bit for bit. The order alternates; each time is that of a whole window.
"""

from collections.abc import Callable
from typing import Any

from _common import Row, publish, race_arguments, race_windows

CASES = {
    "mlp 3 x 1024, batch 16 x 8": {"width": 1024, "batch": 16, "window": 8},
    "mlp 3 x 2048, batch 128 x 4": {"width": 2048, "batch": 128, "window": 4},
    "mlp 3 x 1024, batch 512 x 4": {"width": 1024, "batch": 512, "window": 4},
    "mlp 3 x 1024, batch 16": {"width": 1024, "batch": 16, "window": 1},
    "mlp 3 x 1024, batch 512": {"width": 1024, "batch": 512, "window": 1},
}
MAX_NORM = 1.0


def model(width: int) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(*[one for _ in range(3) for one in (torch.nn.Linear(width, width), torch.nn.ReLU())])


def by_hand(width: int, window: int) -> Callable[[Any], Any]:
    """The loop of torch's documentation, in bf16."""
    import torch

    net = model(width)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def train(batches: list[Any]) -> Any:
        for x, y in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = torch.nn.functional.mse_loss(net(x), y)
            (loss / window).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train


def train_step(width: int, window: int) -> Callable[[Any], Any]:
    """The same loop with TrainStep."""
    import torch

    from ampwise import TrainStep

    net = model(width)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    step = TrainStep(optimizer, modules=net, precision="bf16", clip_grad_norm=MAX_NORM, accumulation_steps=window)

    def train(batches: list[Any]) -> Any:
        for x, y in batches:
            with step.autocast():
                loss = torch.nn.functional.mse_loss(net(x), y)
            step(loss)
        return loss.detach()

    return train


def race(case: str, *, width: int, batch: int, window: int, rounds: int, clock: Callable[[], float]) -> Row:
    import torch

    loops = {"torch.amp": by_hand(width, window), "TrainStep": train_step(width, window)}
    torch.manual_seed(1)
    return race_windows(
        case,
        loops,
        lambda: [(torch.randn(batch, width), torch.randn(batch, width)) for _ in range(window)],
        rounds=rounds,
        clock=clock,
        goal=">= 0.99; small batches >= 1.05 (geometric mean)" if window == 1 else ">= 1.05 (geometric mean)",
    )


def main() -> None:
    arguments, clock = race_arguments(__doc__)
    rounds, share = (4, 4) if arguments.quick else (arguments.rounds, 1)
    rows = []
    for case, options in CASES.items():
        sizes = {**options, "width": options["width"] // share}
        rows.append(race(case, **sizes, rounds=rounds, clock=clock))
    smaller = "; a quarter of the width" if arguments.quick else ""
    publish("step", rows, note=f"One process, the allocator tuned, fused AdamW, {arguments.clock} clock{smaller}.")


if __name__ == "__main__":
    main()
