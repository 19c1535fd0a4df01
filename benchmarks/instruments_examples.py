"""What the sampled sizes of numbers cost a training at their default settings, on the models of the shipped examples.

Each example's own code makes its model, optimizer and batches, at its default sizes; the step is in bf16, as
`ampwise run` would train it. A long run is one sampled step, then 49 between samples, again and again. So steps of
three kinds are timed by turns in one process: bare, sampled, and the one after a sampled one; each round weighs its
own as a long run does. That the share of time which measuring may take thins the samples where they are dear is left
out. Ratios are bare / watched; off, nothing is attached, which is the bare side.
"""

import contextlib
import io
import itertools
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from _common import ROOT, Row, publish, race_arguments, row_of
from instruments import numerics

_EXAMPLES = ROOT / "examples"
_EVERY = 50
_SECONDS = 25.0
"""Each example is measured for so long, or for three rounds if they take longer."""
_WARM_UP = 2
"""Rounds that do not count."""
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


CASES: dict[str, Callable[[], Made]] = {
    "digits_cnn": digits_cnn,
    "bert_classify": bert_classify,
    "amp_recipe 3x2048, batch 128": amp_recipe,
    "char_gpt": char_gpt,
}


def timed(step: Callable[[], None], clock: Callable[[], float]) -> float:
    """The milliseconds of one step."""
    start = clock()
    step()
    return (clock() - start) * 1e3


def watched_step(step: Callable[[], None], clock: Callable[[], float]) -> float:
    """The mean milliseconds of a step in a run of which one in ``_EVERY`` is sampled."""
    with numerics(every=_EVERY)():
        sampled, between = timed(step, clock), timed(step, clock)
    return (sampled + (_EVERY - 1) * between) / _EVERY


def measured(case: str, step: Callable[[], None], *, seconds: float, clock: Callable[[], float]) -> Row:
    """An example's row: rounds until ``seconds`` are over."""
    pairs: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    while len(pairs) < _WARM_UP + 3 or time.monotonic() < end:
        if len(pairs) % 2:
            bare, mean = timed(step, clock), watched_step(step, clock)
        else:
            mean, bare = watched_step(step, clock), timed(step, clock)
        pairs.append((mean, bare))
    ours, base = map(list, zip(*pairs[_WARM_UP:], strict=True))
    return row_of(case, ours, base, side=f"numerics 1 in {_EVERY}", baseline="bare", goal=">= 0.98")


def main() -> None:
    arguments, clock = race_arguments(__doc__)
    seconds = 2.0 if arguments.quick else _SECONDS
    rows = [measured(case, step_of(make()), seconds=seconds, clock=clock) for case, make in CASES.items()]
    publish("instruments_examples", rows, note="Ratio: how many times as fast as the bare loop.")


if __name__ == "__main__":
    main()
