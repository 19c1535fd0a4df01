"""What `ampwise run` costs: against plain Python in fp32, against hand-written torch.autocast in bf16, and as it comes.

The allocator is set alike on both sides, but in the last rows, which say what it and the precision gain apart.
One thread, processor time, on a CPU: the smallest effect that can be told from noise there is about half a percent.
"""

import argparse

from _common import AMPWISE, PLAIN, TRAIN, TUNED, Side, measure, publish, ratio_row

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
