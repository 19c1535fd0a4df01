"""What watching a loop's numbers costs: the guard and the tracer of non-finite numbers, and the sampled numerics.

One small transformer in bf16, all sides in one process, by turns, the allocator tuned. Ratios are bare step / watched
step. The numerics are measured over whole blocks of steps, so that the sampled ones weigh as they do in a run. The
second case is the worst for them, a hundred tiny layers.
"""

import statistics
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from _common import Row, publish, race_arguments, ratio_row

Clock = Callable[[], float]
Side = Callable[[], Any]
"""Makes the context under which a block of steps is timed."""


def transformer(width: int, depth: int) -> tuple[Any, Any, Any]:
    """A model, its optimizer, and a batch of 8 sequences of 128 tokens, 64 where it is tiny."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    return model, torch.optim.AdamW(model.parameters()), torch.randn(8, 128 if width > 64 else 64, width)


def tiny_layers() -> tuple[Any, Any, Any]:
    import torch
    from torch.nn import LayerNorm, Linear, Sequential

    torch.manual_seed(0)
    model = Sequential(*[layer for _ in range(50) for layer in (Linear(32, 32), LayerNorm(32))])
    return model, torch.optim.AdamW(model.parameters()), torch.randn(16, 32)


def step_of(model: Any, optimizer: Any, x: Any) -> Callable[[], None]:
    import torch

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def watched(make: Callable[[Any], Any]) -> Generator[Any]:
    """An instrument on a loop that is found by what it calls."""
    from ampwise.observe.events import EventBus
    from ampwise.observe.loop import LoopWatcher

    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), make(bus) as instrument:
        yield instrument


def tracers() -> dict[str, Side]:
    import torch

    from ampwise.instruments.nonfinite import NonFiniteWatch

    return {
        "bare": nullcontext,
        "loop watched": lambda: watched(lambda _: nullcontext()),
        "guard": lambda: watched(NonFiniteWatch),
        "trace": lambda: watched(lambda bus: NonFiniteWatch(bus, trace=True)),
        "detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
    }


def numerics(*, every: int, max_share: float | None = None) -> Side:
    from ampwise.instruments.numerics import NumericsWatch

    return lambda: watched(lambda bus: NumericsWatch(bus, every=every, max_share=max_share))


def race(
    sides: dict[str, Side], step: Callable[[], None], *, rounds: int, block: int, clock: Clock
) -> dict[str, list[dict[str, float]]]:
    """The mean time of a step in a block of steps, each side in turn, without entering and leaving."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in ordered(sides, number):
            with ExitStack() as stack:
                stack.enter_context(side())
                start = clock()
                for _ in range(block):
                    step()
                if number:  # the first round warms up
                    results[name].append({"step_ms": (clock() - start) * 1e3 / block})
    return results


def ordered(sides: dict[str, Side], number: int) -> Iterator[tuple[str, Side]]:
    return iter(sides.items()) if number % 2 else reversed(sides.items())


def slow_down(results: dict[str, list[dict[str, float]]], name: str) -> float:
    pairs = zip(results[name], results["bare"], strict=True)
    return statistics.median(mine["step_ms"] / bare["step_ms"] for mine, bare in pairs)


def main() -> None:
    import warnings

    arguments, clock = race_arguments(__doc__)
    warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
    rounds = 5 if arguments.quick else arguments.rounds
    rows: list[Row] = []
    cases = {"tiny d=64 L=2": (64, 2), "small d=256 L=4": (256, 4)}
    for case, (width, depth) in list(cases.items())[: 1 if arguments.quick else None]:
        step = step_of(*transformer(width, depth))
        results = race(tracers(), step, rounds=rounds, block=2, clock=clock)
        half = (slow_down(results, "detect_anomaly") - 1) / 2
        goals = {
            "loop watched": "1.00",
            "guard": ">= 0.97",
            "trace": f">= 0.77, slow-down at most {half:.2f} (half of detect_anomaly's)",
            "detect_anomaly": "(reported)",
        }
        rows += [ratio_row(case, results, name, "bare", goal=goal) for name, goal in goals.items()]
        sides = {"bare": nullcontext, "numerics 1 in 50": numerics(every=50)}
        results = race(sides, step, rounds=max(1, rounds // 4), block=50, clock=clock)
        rows.append(ratio_row(case, results, "numerics 1 in 50", "bare", goal=">= 0.98"))
    sides = {
        "bare": nullcontext,
        "numerics 1 in 50": numerics(every=50, max_share=None),
        "numerics, default": numerics(every=50, max_share=0.02),
    }
    block = 100 if arguments.quick else 500
    results = race(sides, step_of(*tiny_layers()), rounds=max(1, rounds // 4), block=block, clock=clock)
    rows.append(ratio_row("100 tiny layers", results, "numerics 1 in 50", "bare", goal="(reported)"))
    rows.append(ratio_row("100 tiny layers", results, "numerics, default", "bare", goal=">= 0.98"))
    publish("instruments", rows, note="Ratio: how many times as fast as the bare loop.")


if __name__ == "__main__":
    main()
