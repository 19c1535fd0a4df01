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

    Memory grows about linearly with the batch, so that the line through two predictions leads close to the end, and
    halving what is left to search leads to it.

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
    while high is None or high - low > 1:
        batch = _next(known, low, high)
        if batch > _LARGEST:
            raise CannotRunError(f"a batch of {low} still fits, and so may any: the memory does not grow with it")
        if fits(batch):
            low = batch
        else:
            high = batch
    return known.get(low)


def _next(known: dict[int, Estimate], low: int, high: int | None) -> int:
    """The batch to try: where the line through the nearest two predictions meets the capacity."""
    guess = _guess(known)
    if high is None:
        return max(low + 1, min(guess or 2 * low, 16 * low))
    if guess is None or len(known) > 6:  # the line has had its chance
        return (low + high) // 2
    return min(max(guess, low + 1), high - 1)


def _guess(known: dict[int, Estimate]) -> int | None:
    capacity = next(iter(known.values())).capacity_bytes
    if len(known) < 2 or capacity is None:
        return None
    first, second = sorted(sorted(known, key=lambda batch: abs(known[batch].needed_bytes - capacity))[:2])
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
