"""BERT-base (8 x 128) and ResNet-50 (8 x 224 x 224): fp32, hand-written torch.autocast in bf16, and ampwise's auto.

Figures usually quoted for an A100: 2.3x for BERT-base, and 40 % less memory for ResNet-50.
"""

import argparse

from _common import AMPWISE, PLAIN, TRAIN, TUNED, Side, measure, publish, ratio_row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="fewer runs and steps")
    arguments = parser.parse_args()
    runs, steps = (2, 4) if arguments.quick else (arguments.runs, arguments.steps)
    rows = []
    for model, published in (("bert", 2.9), ("resnet", 1.7)):
        loop = [str(TRAIN), "--model", model, "--steps", str(steps), "--warmup", "2"]
        sides = [
            Side(name="fp32", command=[*PLAIN, *loop], environment=TUNED),
            Side(name="autocast bf16", command=[*PLAIN, *loop, "--autocast", "bf16"], environment=TUNED),
            Side(name="ampwise auto", command=[*AMPWISE, "--malloc", "system", *loop], environment=TUNED),
        ]
        results = measure(sides, runs=runs)
        rows.append(ratio_row(model, results, "autocast bf16", "fp32", goal=f"{published}x measured before"))
        rows.append(ratio_row(model, results, "ampwise auto", "fp32", goal="at least autocast's"))
        rows.append(ratio_row(model, results, "ampwise auto", "autocast bf16", goal=">= 1.0"))
    publish(
        "headline", rows, note="The allocator tuned on every side. An A100 is usually quoted at 2.3x for BERT-base."
    )


if __name__ == "__main__":
    main()
