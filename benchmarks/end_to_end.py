"""The examples, trained with clipping and accumulation: TrainStep beside the loop by hand with torch.amp.

Both loops are in one process, so they share the allocator's setting, which is ampwise's, see the same batches and use
the same fused optimizer. Their losses are compared bit for bit. The order alternates; each time is that of a window.
"""

import contextlib
import io
import runpy
import sys
from collections.abc import Callable
from typing import Any

from _common import ROOT, Row, publish, race_arguments, race_windows

CASES = {
    "char_gpt, batch 1 x 64": ("char_gpt", ["--steps", "0", "--batch", "1", "--context", "64"], 1),
    "char_gpt, batch 1 x 64 x 4": ("char_gpt", ["--steps", "0", "--batch", "1", "--context", "64"], 4),
    "char_gpt, batch 16 x 128": ("char_gpt", ["--steps", "0"], 1),
    "digits_cnn, batch 16": ("digits_cnn", ["--epochs", "0", "--batch", "16"], 1),
    "digits_cnn, batch 64 x 4": ("digits_cnn", ["--epochs", "0"], 4),
}
MAX_NORM = 1.0
Train = Callable[[list[Any]], Any]


def example(name: str, options: list[str]) -> dict[str, Any]:
    """What the example defines, untrained."""
    argv, sys.argv = sys.argv, [name, *options]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    finally:
        sys.argv = argv


def batches(made: dict[str, Any], count: int) -> list[Any]:
    if "get_batch" in made:
        return [made["get_batch"](made["train_data"]) for _ in range(count)]
    found = iter(made["loader"])
    return [next(found) for _ in range(count)]


def loss_of(made: dict[str, Any], x: Any, y: Any) -> Any:
    import torch

    out = made["model"](x)
    return torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))


def optimizer_of(made: dict[str, Any], **fused: bool) -> Any:
    import torch

    kind = torch.optim.AdamW if "get_batch" in made else torch.optim.SGD
    momentum = {} if "get_batch" in made else {"momentum": 0.9}
    return kind(made["model"].parameters(), lr=1e-3, **momentum, **fused)


def by_hand(made: dict[str, Any], window: int) -> Train:
    import torch

    optimizer = optimizer_of(made, fused=True)

    def train(window_batches: list[Any]) -> Any:
        for x, y in window_batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(made, x, y)
            (loss / window).backward()
        torch.nn.utils.clip_grad_norm_(made["model"].parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train


def train_step(made: dict[str, Any], window: int) -> Train:
    from ampwise import TrainStep

    options = {"precision": "bf16", "clip_grad_norm": MAX_NORM, "accumulation_steps": window}
    step = TrainStep(optimizer_of(made), modules=made["model"], **options)

    def train(window_batches: list[Any]) -> Any:
        for x, y in window_batches:
            with step.autocast():
                loss = loss_of(made, x, y)
            step(loss)
        return loss.detach()

    return train


def race(case: str, *, rounds: int, clock: Callable[[], float]) -> Row:
    name, options, window = CASES[case]
    mine, theirs = example(name, options), example(name, options)
    theirs["model"].load_state_dict(mine["model"].state_dict())
    loops = {"torch.amp": by_hand(theirs, window), "TrainStep": train_step(mine, window)}
    return race_windows(
        case,
        loops,
        lambda: batches(mine, window),
        rounds=rounds,
        clock=clock,
        goal=">= 0.99; small batches >= 1.05 (geometric mean)",
    )


def main() -> None:
    arguments, clock = race_arguments(__doc__)
    rounds = 3 if arguments.quick else arguments.rounds
    rows = [race(case, rounds=rounds, clock=clock) for case in CASES]
    publish("end_to_end", rows, note=f"One process, the allocator tuned, fused optimizers, {arguments.clock} clock.")


if __name__ == "__main__":
    main()
