"""What `ampwise run` costs: against plain Python in fp32, against hand-written torch.autocast in bf16, and as it comes.

The allocator is set alike on both sides, but in the last rows, which say what it and the precision gain apart.
One thread, processor time, on a CPU: the smallest effect that can be told from noise there is about half a percent.
"""

import argparse
import statistics
import time
from contextlib import AbstractContextManager, nullcontext

from _common import AMPWISE, PLAIN, TRAIN, TUNED, Row, Side, measure, publish, ratio_row

STEPS = {"mlp60": 300, "rnn": 30, "gpt": 15}


def sides(model: str, steps: int) -> list[Side]:
    """The five ways the same loop is run."""
    loop = [str(TRAIN), "--model", model, "--steps", str(steps), "--threads", "1", "--clock", "cpu"]
    same = [*AMPWISE, "--malloc", "system"]
    return [
        Side(name="plain fp32", command=[*PLAIN, *loop], environment=TUNED),
        Side(name="run fp32", command=[*same, "--precision", "fp32", *loop], environment=TUNED),
        Side(name="autocast bf16", command=[*PLAIN, *loop, "--autocast", "bf16"], environment=TUNED),
        Side(name="run bf16", command=[*same, "--precision", "bf16", *loop], environment=TUNED),
        Side(
            name="run bf16 stock lists",
            command=[*same, "--precision", "bf16", "--lists", "stock", *loop],
            environment=TUNED,
        ),
    ]


def as_it_comes(steps: int) -> list[Side]:
    """Plain Python, the allocator alone, and the default run, on the recipe."""
    loop = [str(TRAIN), "--model", "recipe", "--steps", str(steps), "--batch", "128"]
    return [
        Side(name="plain", command=[*PLAIN, *loop], environment={}),
        Side(name="allocator alone", command=[*AMPWISE, "--precision", "fp32", *loop], environment={}),
        Side(name="run", command=[*AMPWISE, *loop], environment={}),
    ]


def alternated(*, rounds: int) -> list[Row]:
    """The 60 tiny layers with injection on and off by turns in one process: the smallest noise there is."""
    import torch
    from torch.nn import Linear, ReLU, Sequential
    from torch.nn.functional import mse_loss

    from ampwise.runner.inject import inject
    from ampwise.runtime.hardware.device import Choice

    torch.set_num_threads(1)
    model = Sequential(*[layer for _ in range(60) for layer in (Linear(32, 32), ReLU())])
    x, y = torch.randn(16, 32), torch.randn(16, 32)
    optimizer = torch.optim.AdamW(model.parameters())

    def step_ms(by_hand: AbstractContextManager[object]) -> float:
        times = []
        for _ in range(40):
            start = time.process_time()
            with by_hand:
                loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append((time.process_time() - start) * 1000)
        return statistics.median(times)

    def injected(precision: str) -> float:
        with inject(choice=Choice(precision=precision, reason="", slow_factor=None, device="cpu")):
            return step_ms(nullcontext())

    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for name, measured in {
            "plain fp32": lambda: step_ms(nullcontext()),
            "run fp32": lambda: injected("fp32"),
            "autocast bf16": lambda: step_ms(torch.autocast("cpu", torch.bfloat16)),
            "run bf16": lambda: injected("bf16"),
        }.items():
            results.setdefault(name, []).append({"step_ms": measured()})
    return [
        ratio_row("mlp60, one process", results, "run fp32", "plain fp32", goal=">= 0.985"),
        ratio_row("mlp60, one process", results, "run bf16", "autocast bf16", goal=">= 0.98"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="fewer runs and steps")
    arguments = parser.parse_args()
    runs, share = (3, 3) if arguments.quick else (arguments.runs, 1)
    rows = []
    for model, steps in STEPS.items():
        results = measure(sides(model, max(5, steps // share)), runs=runs)
        rows.append(ratio_row(model, results, "run fp32", "plain fp32", goal=">= 0.985"))
        rows.append(ratio_row(model, results, "run bf16", "autocast bf16", goal=">= 0.98"))
        rows.append(ratio_row(model, results, "run bf16 stock lists", "autocast bf16", goal=">= 0.98"))
    rows += alternated(rounds=30 // share)
    results = measure(as_it_comes(max(5, 20 // share)), runs=max(3, runs // 2))
    rows.append(ratio_row("recipe 128 x 2048", results, "allocator alone", "plain", goal="1.0-2.0 (reported)"))
    rows.append(ratio_row("recipe 128 x 2048", results, "run", "allocator alone", goal="precision's part (reported)"))
    rows.append(ratio_row("recipe 128 x 2048", results, "run", "plain", goal="both (reported)"))
    publish(
        "overhead",
        rows,
        note="Processor time with one thread; the allocator alike on both sides but in the recipe's rows.",
    )


if __name__ == "__main__":
    main()
