"""Unscale, clip, step and update: TrainStep's way beside torch.amp's sequence; the parameters are compared bit for bit.

Both sides are in one process, so they share the allocator's setting, which is ampwise's. The order alternates. The
second part grows the number of tensors: what one more costs stays flat.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from _common import Row, publish, race_arguments, row_of

SHAPES = {"50 x 2M": (50, 2_000_000), "300 x 20k": (300, 20_000)}
Clock = Callable[[], float]
Times = dict[str, list[float]]
COUNTS = (10, 100, 1000, 10_000)
SCALE = 65536.0


@dataclass(kw_only=True)
class Loop:
    """One side: parameters, their optimizer and what steps it."""

    params: list[Any]
    step: Callable[[], None]


def torch_amp(params: list[Any], max_norm: float, **fused: bool) -> Loop:
    """The sequence of torch's documentation."""
    import torch

    optimizer = torch.optim.AdamW(params, lr=1e-3, **fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    scaler.scale(torch.ones(1))

    def step() -> None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, max_norm)
        scaler.step(optimizer)
        scaler.update()

    return Loop(params=params, step=step)


def train_step(params: list[Any], max_norm: float) -> Loop:
    """What TrainStep does after backward, through its own methods."""
    import torch

    from ampwise.runtime.scaling.scaler import GradScaler
    from ampwise.runtime.step.update import ClippedUpdate, choose_fused

    optimizer = torch.optim.AdamW(params, lr=1e-3)
    choose_fused([optimizer])
    scaler = GradScaler("cpu", init_scale=SCALE)
    scaler.scale(torch.ones(1))

    def step() -> None:
        update = ClippedUpdate.plan([optimizer], params, scale=SCALE, max_norm=max_norm)
        update.step(optimizer)
        scaler.note_finite_step(optimizer)
        scaler.note_grad_norm(update.norm)
        scaler.update()

    return Loop(params=params, step=step)


def tensors(count: int, size: int) -> list[Any]:
    import torch

    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size)) for _ in range(count)]


def gradients(count: int, size: int) -> list[Any]:
    import torch

    torch.manual_seed(1)
    return [torch.randn(size) * SCALE for _ in range(count)]


def race(loops: dict[str, Loop], grads: list[Any], *, rounds: int, clock: Clock) -> Times:
    """Milliseconds of every loop in every round; the gradients are set anew, outside the clock."""
    times: Times = {name: [] for name in loops}
    for number in range(rounds + 1):
        order = list(loops.items())
        for name, loop in order if number % 2 else reversed(order):
            for param, grad in zip(loop.params, grads, strict=True):
                param.grad = grad.clone()
            start = clock()
            loop.step()
            if number:
                times[name].append((clock() - start) * 1e3)
    return times


def row(case: str, times: Times, side: str, baseline: str, goal: str) -> Row:
    return row_of(case, times[side], times[baseline], side=side, baseline=baseline, goal=goal)


def compare(case: str, count: int, size: int, *, rounds: int, clock: Clock) -> list[Row]:
    import torch

    rows = []
    grads = gradients(count, size)
    for clips, max_norm in (("clipped", 1.0), ("not clipped", float("inf"))):
        loops = {
            "torch.amp fused": torch_amp(tensors(count, size), max_norm, fused=True),
            "TrainStep": train_step(tensors(count, size), max_norm),
        }
        if clips == "clipped":
            loops["torch.amp default"] = torch_amp(tensors(count, size), max_norm)
        times = race(loops, grads, rounds=rounds, clock=clock)
        pairs = zip(loops["TrainStep"].params, loops["torch.amp fused"].params, strict=True)
        if not all(torch.equal(mine, other) for mine, other in pairs):
            sys.exit(f"{case}, {clips}: the parameters differ from torch.amp's")
        rows.append(row(f"{case} {clips}", times, "TrainStep", "torch.amp fused", ">= 1.25 (geometric mean)"))
        if clips == "clipped":
            rows.append(row(f"{case} {clips}", times, "TrainStep", "torch.amp default", ">= 3"))
    return rows


def curve(*, rounds: int, clock: Clock) -> list[Row]:
    """What one tensor of 64 numbers costs, as their number grows."""
    rows = []
    for count in COUNTS:
        loops = {
            "torch.amp fused": torch_amp(tensors(count, 64), 1.0, fused=True),
            "TrainStep": train_step(tensors(count, 64), 1.0),
        }
        times = race(loops, gradients(count, 64), rounds=rounds, clock=clock)
        rows.append(row(f"{count} tensors", times, "TrainStep", "torch.amp fused", "cost per tensor stays flat"))
    return rows


def print_curve(rows: list[Row]) -> None:
    """What a tensor costs on the whole, and what one more costs: a small model pays the fixed part of a step."""
    number, total = 0, 0.0
    for one in rows:
        count = int(one.case.split()[0])
        print(f"  {one.case}: {one.ms / count * 1e3:.1f} us a tensor")
        if number:
            print(f"    {(one.ms - total) / (count - number) * 1e3:.1f} us for each beyond {number}")
        number, total = count, one.ms


def main() -> None:
    arguments, clock = race_arguments(__doc__)
    rounds, share = (3, 20) if arguments.quick else (arguments.rounds, 1)
    rows = []
    for case, (count, size) in SHAPES.items():
        rows += compare(case, count, size // share, rounds=rounds, clock=clock)
    rows += curve(rounds=rounds, clock=clock)
    print_curve(rows[-len(COUNTS) :])
    small = "; tensors a twentieth of their size" if arguments.quick else ""
    publish("update", rows, note=f"One process, the allocator tuned, {arguments.clock} clock{small}.")


if __name__ == "__main__":
    main()
