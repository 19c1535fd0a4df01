"""Takes the loss curves out of run records and averages them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from ampwise.records.run import RunRecord

Curve = tuple[float, ...]
"""The losses of one optimizer's steps, in order."""


def curves(run: RunRecord) -> dict[int, Curve]:
    """The run's loss curves by optimizer; those without a loss are left out."""
    found: dict[int, list[float]] = {}
    for step in run.steps:
        if step.loss is not None:
            found.setdefault(step.optimizer, []).append(step.loss)
    return {optimizer: tuple(losses) for optimizer, losses in found.items()}


def first_curve(run: RunRecord) -> Curve:
    """The loss curve of the first optimizer that has one."""
    found = curves(run)
    return found[min(found)] if found else ()


def final_loss(curve: Sequence[float]) -> float | None:
    """Mean of the last tenth of the losses, at least five; None without any."""
    return fmean(curve[-max(5, len(curve) // 10) :]) if curve else None


def is_finite(loss: float) -> bool:
    """Whether the loss is a number one can reckon with: not nan, and its square is no infinity."""
    return abs(loss) < 1e150


def all_finite(losses: Iterable[float]) -> bool:
    """Whether one can reckon with each of them."""
    return all(map(is_finite, losses))


def block_means(values: Sequence[float], *, num_blocks: int) -> list[float]:
    """Means of ``num_blocks`` consecutive parts of nearly equal length."""
    size = len(values) / num_blocks
    bounds = [round(index * size) for index in range(num_blocks + 1)]
    return [fmean(values[start:end]) for start, end in pairwise(bounds)]
