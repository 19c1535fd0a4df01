"""What the sampled sizes of numbers cost a training at their default settings, on the models of the shipped examples.

Each example's own code makes its model, optimizer and batches, at its default sizes; the step is in bf16, as
`ampwise run` would train it. Both sides in one process, by turns, over whole blocks of steps: the first step of a block
is sampled, as one in 50 is in a long run. Ratios are bare / watched; off, nothing is attached, which is the bare side.
"""

import contextlib
import io
import itertools
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from _common import ROOT, Row, publish, race_arguments, ratio_row
from instruments import numerics, race

_EXAMPLES = ROOT / "examples"
Made = tuple[Any, Any, Callable[[], Any]]
"""A model, its optimizer, and what computes the loss of the next batch."""


def names_of(example: str, *arguments: str) -> dict[str, Any]:
    """What an example's code has defined once it has run without training, or hardly."""
    before, sys.argv = sys.argv, [example, *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return runpy.run_path(str(_EXAMPLES / example))
    finally:
        sys.argv = before


def char_gpt() -> Made:
    from torch.nn.functional import cross_entropy

    names = names_of("char_gpt.py", "--steps", "0")
    model = names["model"].train()

    def loss() -> Any:
        x, y = names["get_batch"](names["train_data"])
        return cross_entropy(model(x).flatten(0, 1), y.flatten())

    return model, names["optimizer"], loss


def digits_cnn() -> Made:
    names = names_of("digits_cnn.py", "--epochs", "0")
    model, batches = names["model"].train(), _for_ever(names["loader"])

    def loss() -> Any:
        x, y = next(batches)
        return names["criterion"](model(x), y)

    return model, names["optimizer"], loss


def bert_classify() -> Made:
    names = names_of("bert_classify.py", "--epochs", "0")
    model, batches = names["model"].train(), _for_ever(names["train"])
    return model, names["optimizer"], lambda: model(**next(batches)).loss


def amp_recipe() -> Made:
    import torch

    sizes = ("--width", "2048", "--batch", "128", "--epochs", "1", "--batches", "1")
    model = names_of("amp_recipe.py", *sizes)["make_model"]()
    x, y = torch.randn(128, 2048), torch.randn(128, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    return model, optimizer, lambda: torch.nn.functional.mse_loss(model(x).float(), y)


def step_of(made: Made) -> Callable[[], None]:
    import torch

    _, optimizer, loss_of = made

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()

    return step


def _for_ever(batches: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(batches))


CASES: dict[str, tuple[Callable[[], Made], int, int]] = {
    "digits_cnn": (digits_cnn, 100, 8),
    "bert_classify": (bert_classify, 50, 5),
    "amp_recipe 3x2048, batch 128": (amp_recipe, 50, 5),
    "char_gpt": (char_gpt, 50, 3),
}
"""How each is made, its steps in a block, and how many blocks; the first round warms up."""


def main() -> None:
    arguments, clock = race_arguments(__doc__)
    sides = {"bare": nullcontext, "numerics, default": numerics(every=50, max_share=0.02)}
    rows: list[Row] = []
    for case, (make, block, rounds) in CASES.items():
        size = 10 if arguments.quick else block
        results = race(sides, step_of(make()), rounds=1 if arguments.quick else rounds, block=size, clock=clock)
        rows.append(ratio_row(case, results, "numerics, default", "bare", goal=">= 0.98"))
    publish("instruments_examples", rows, note="Ratio: how many times as fast as the bare loop.")


if __name__ == "__main__":
    main()
