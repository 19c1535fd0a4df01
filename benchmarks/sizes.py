"""The AMP recipe at batch 128, 256, 512 and 513: what mixed precision gains, and what multiples of 8 do."""

import argparse

from _common import AMPWISE, PLAIN, TRAIN, TUNED, Side, measure, publish, ratio_row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    arguments = parser.parse_args()
    rows = []
    for batch in (128, 256, 512, 513):
        loop = [str(TRAIN), "--model", "recipe", "--steps", "6", "--batch", str(batch), "--width", str(arguments.width)]
        sides = [
            Side(name="fp32", command=[*PLAIN, *loop], environment=TUNED),
            Side(name="ampwise auto", command=[*AMPWISE, "--malloc", "system", *loop], environment=TUNED),
        ]
        results = measure(sides, runs=2 if arguments.quick else arguments.runs)
        rows.append(ratio_row(f"batch {batch}", results, "ampwise auto", "fp32", goal=">= 2 at 2048 with avx512_bf16"))
    publish("sizes", rows, note=f"Linear-{arguments.width} x 3, MSE; the allocator tuned on both sides.")


if __name__ == "__main__":
    main()
