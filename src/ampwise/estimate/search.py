"""The largest batch that fits, found by a handful of predictions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.records.estimate import Estimate
from ampwise.runner.script import Target

_LARGEST: Final = 2**20


def largest_batch(predict: Callable[[int], Estimate], *, start: int = 1) -> Estimate | None:
    """The prediction of the largest batch that fits; None where not even a batch of 1 does.

    Memory grows about linearly with the batch, but in steps, since the allocator takes whole segments. The line through
    two predictions leads close to the end; from there the strides grow fourfold until the end lies between two.

    Args:
        predict: Predicts a batch.
        start: Where to begin.

    Raises:
        CannotRunError: the memory does not depend on the batch, or a run ended early.
    """
    known: dict[int, Estimate] = {}

    def fits(batch: int) -> bool:
        known[batch] = made = replace(predict(batch), batch_size=batch)
        if made.is_lower_bound:
            raise CannotRunError(f"with a batch of {batch}: {made.assumptions[0]}")
        return bool(made.fits)

    low, high = (start, None) if fits(start) else (0, start)
    stride = 1
    while high is None or high - low > 1:
        batch = _next(known, low, high, stride)
        if batch > _LARGEST:
            raise CannotRunError(f"a batch of {low} still fits, and so may any: the memory does not grow with it")
        stride *= 4 if len(known) > 3 else 1
        if fits(batch):
            low = batch
        else:
            high = batch
    return known.get(low)


def _next(known: dict[int, Estimate], low: int, high: int | None, stride: int) -> int:
    """The batch to try: where the line meets the capacity, at least a stride from what is known."""
    if high is None:
        guess = _guess(known, min(known), max(known))
        return 2 * low if guess is None else min(max(guess, low + stride), 64 * low)
    middle = (low + high) // 2
    if low + stride >= high - stride:
        return middle
    guess = _guess(known, low if low in known else min(known), max(known) if low not in known else high)
    return middle if guess is None else min(max(guess, low + stride), high - stride)


def _guess(known: dict[int, Estimate], first: int, second: int) -> int | None:
    """Where the line through two predictions meets the capacity; None where it does not rise."""
    capacity = known[first].capacity_bytes
    if first == second or capacity is None:
        return None
    slope = (known[second].needed_bytes - known[first].needed_bytes) / (second - first)
    if slope <= 0:
        return None
    return int(second + (capacity - known[second].needed_bytes) / slope)


def with_option(target: Target, option: str, value: int) -> Target:
    """The script with ``option`` set to ``value``, in the place where it was given or at the end."""
    argv = list(target.argv)
    for index, word in enumerate(argv):
        if word == option:
            return replace(target, argv=(*argv[: index + 1], str(value), *argv[index + 2 :]))
        if word.startswith(f"{option}="):
            return replace(target, argv=(*argv[:index], f"{option}={value}", *argv[index + 1 :]))
    return replace(target, argv=(*argv, option, str(value)))


def value_of_option(argv: Sequence[str], option: str) -> int | None:
    """The whole number that the script's arguments give ``option``; None where they do not name it.

    Raises:
        UsageError: what they give is no whole number above 0.
    """
    found = next((after for word, after in pairwise((*argv, "")) if word == option), None)
    found = found or next((word.partition("=")[2] for word in argv if word.startswith(f"{option}=")), None)
    if found is None:
        return None
    if not found.isdecimal() or int(found) == 0:
        raise UsageError(f'--find-batch {option}: the script is given "{found}", which is no batch size')
    return int(found)
