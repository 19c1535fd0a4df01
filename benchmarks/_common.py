"""What every benchmark shares: interleaved runs, ratios of their medians, one JSON file of rows."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwise.runner.malloc import ENVIRONMENT

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench"
TRAIN = ROOT / "benchmarks" / "workloads" / "train.py"
PLAIN = [sys.executable]
AMPWISE = [sys.executable, "-m", "ampwise", "run"]
TUNED = ENVIRONMENT
"""glibc's settings that ampwise applies on a CPU; given to both sides wherever precision alone is compared."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison: a command whose last line of output is JSON with ``step_ms``."""

    name: str
    command: list[str]
    environment: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One claim: how many times as fast as the baseline, and what was asked for."""

    case: str
    side: str
    baseline: str
    ms: float
    baseline_ms: float
    ratio: float
    ratio_min: float
    ratio_max: float
    runs: int
    goal: str


def in_turn(timed: Callable[[bool], float], *, runs: int) -> tuple[list[float], list[float]]:
    """What ``timed`` gives with the thing measured and without, each of them first in every other run."""
    ours, base = [], []
    for number in range(runs):
        for on in (True, False) if number % 2 == 0 else (False, True):
            (ours if on else base).append(timed(on))
    return ours, base


def row_of(case: str, ours: list[float], base: list[float], *, side: str, baseline: str, goal: str) -> Row:
    """Milliseconds measured in turn as a row; the median of the ratios of each run: above 1 the side is faster."""
    ratios = [theirs / mine for mine, theirs in zip(ours, base, strict=True)]
    return Row(
        case=case,
        side=side,
        baseline=baseline,
        ms=statistics.median(ours),
        baseline_ms=statistics.median(base),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        runs=len(ratios),
        goal=goal,
    )


def race_windows(
    case: str,
    loops: "dict[str, Callable[[Any], torch.Tensor]]",
    draw: Callable[[], Any],
    *,
    rounds: int,
    clock: Callable[[], float],
    goal: str,
) -> Row:
    """TrainStep's loop beside torch.amp's on the same windows, in turn; their losses must be equal, bit for bit.

    Args:
        case: The row's name.
        loops: ``torch.amp`` and ``TrainStep``: each trains one window and gives its last loss.
        draw: Gives the next window's batches.
        rounds: Windows that are timed; two before them are not.
        clock: Gives seconds.
        goal: What was asked for.
    """
    times: dict[str, list[float]] = {side: [] for side in loops}
    for number in range(rounds + 2):
        window, losses = draw(), {}
        order = list(loops.items())
        for side, train in order if number % 2 else reversed(order):
            start = clock()
            losses[side] = train(window)
            if number >= 2:
                times[side].append((clock() - start) * 1e3)
        if not losses["torch.amp"].equal(losses["TrainStep"]):
            sys.exit(f"{case}: the losses differ in window {number}: {losses}")
    return row_of(
        case, times["TrainStep"], times["torch.amp"], side="TrainStep bf16", baseline="torch.amp bf16", goal=goal
    )


def measure(sides: list[Side], *, runs: int) -> dict[str, list[dict[str, float]]]:
    """Run every side ``runs`` times in turn, the order reversed every other time, so that drift cancels."""
    results: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for number in range(runs):
        for side in sides if number % 2 == 0 else reversed(sides):
            environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
            done = subprocess.run(
                side.command, env=environment | side.environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(f"{side.name}: {' '.join(side.command)}\n{done.stderr[-2000:]}")
            results[side.name].append(json.loads(done.stdout.strip().splitlines()[-1]))
    return results


def ratio_row(case: str, results: dict[str, list[dict[str, float]]], side: str, baseline: str, *, goal: str) -> Row:
    """The steps of a side beside the baseline's."""
    ours, base = ([one["step_ms"] for one in results[name]] for name in (side, baseline))
    return row_of(case, ours, base, side=side, baseline=baseline, goal=goal)


def publish(name: str, rows: list[Row], *, note: str = "") -> None:
    """Print the rows and write them, with the machine they were measured on, to bench/NAME.json."""
    import torch

    processor = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor()
    )
    machine = {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    print(f"{name} on {machine['gpu'] or processor}, {machine['threads']} threads, torch {machine['torch']}. {note}")
    for row in rows:
        print(
            f"  {row.case:28s} {row.side:24s} {row.ms:9.2f} ms  {row.ratio:5.3f}x of {row.baseline} "
            f"({row.baseline_ms:.2f} ms; {row.ratio_min:.3f}-{row.ratio_max:.3f}, {row.runs} runs)  goal {row.goal}"
        )
    OUT.mkdir(exist_ok=True)
    document = {"name": name, "note": note, "machine": machine, "rows": [asdict(row) for row in rows]}
    (OUT / f"{name}.json").write_text(json.dumps(document, indent=1))


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def race_arguments(description: str | None) -> tuple[argparse.Namespace, Callable[[], float]]:
    """The options of a benchmark that races its sides within one process, and the clock; the allocator is tuned."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller models")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in TUNED.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **TUNED})  # noqa: S606 - itself
    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    return arguments, time.perf_counter if arguments.clock == "wall" else time.process_time
