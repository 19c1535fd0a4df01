"""Which operators of a module, computed in fp32 by themselves, take away what the low format does to it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from ampwise.instruments.alone import Alone, SeenOp, floats_in
from ampwise.instruments.closeness import relative_error

_MOST: Final = 3
"""Of more operators the whole module is the simpler rule."""
_TRIED: Final = 8
"""So many operators of a module are tried, in the order of their first call."""
_LEFT: Final = 0.3
"""Operators count as at fault if no more of the error than this is left without them."""

Lift = Callable[[tuple[str, ...]], Alone]
"""Computes the module in the low format once more, these operators in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """The operators at fault in a module."""

    operators: tuple[str, ...]
    """As rules name them; none where only the whole module in fp32 helps."""
    left: float
    """The error that is left with them in fp32, as a share of the module's in the low format."""


_WHOLE: Final = Isolated(operators=(), left=0.0)


def isolate(low: Alone, high: Alone, lift: Lift) -> Isolated | None:
    """The fewest operators of a module that have to be in fp32 for its error to go; None where nothing is wrong.

    Args:
        low: What the module gave in the low format, its operators watched.
        high: In fp32; watched, too, where an operator failed in ``low``.
        lift: Computes it with some operators in fp32.
    """
    error = distance(low, high)
    if failed_op(low, high) is not None:
        return _without_failure(low, high, lift)
    if not error:
        return None
    return _without_error(low, high, lift, error)


def failed_op(low: Alone, high: Alone) -> SeenOp | None:
    """The first operator that left the low format's range where fp32 stayed in its own."""
    for op in low.ops:
        other = high.counterpart(op)
        if op.failed and (other is None or math.isfinite(other.amax)):
            return op
    return None


def distance(low: Alone, high: Alone) -> float:
    """How far off all is that the module gave, to its caller and to the modules within; infinite where not finite."""
    errors = [relative_error(mine.float(), other.float()) for mine, other in _pairs(low, high)]
    total = math.sqrt(math.fsum(error * error for error in errors)) if all(map(math.isfinite, errors)) else math.inf
    return math.inf if math.isnan(total) else total


def _without_failure(low: Alone, high: Alone, lift: Lift) -> Isolated:
    """Lift one failing operator after another until none fails."""
    lifted: tuple[str, ...] = ()
    alone = low
    while (op := failed_op(alone, high)) is not None:
        if op.function is None or op.function in lifted or len(lifted) == _MOST:
            return _WHOLE
        lifted = (*lifted, op.function)
        if not _is_part(lifted, low):
            return _WHOLE
        alone = lift(lifted)
    return Isolated(operators=lifted, left=0.0) if math.isfinite(distance(alone, high)) else _WHOLE


def _without_error(low: Alone, high: Alone, lift: Lift, error: float) -> Isolated:
    """Lift the operator without which least error is left, then one beside it."""
    lifted: tuple[str, ...] = ()
    while rest := [op for op in low.operators[:_TRIED] if op not in lifted]:
        left, best = min((distance(lift((*lifted, op)), high) / error, op) for op in rest)
        lifted = (*lifted, best)
        if not _is_part(lifted, low):
            break
        if left <= _LEFT:
            return Isolated(operators=lifted, left=left)
        if len(lifted) == 2:
            break
    return _WHOLE


def _is_part(lifted: tuple[str, ...], low: Alone) -> bool:
    """Whether anything is left that the module computes."""
    return len(lifted) < low.num_operators


def _pairs(low: Alone, high: Alone) -> Iterator[tuple[Tensor, Tensor]]:
    given = [(low.given.get(number, []), other) for number, other in high.given.items()]
    for mine, others in (*given, (floats_in(low.output), floats_in(high.output))):
        yield from (pair for pair in zip(mine, others, strict=False) if pair[0].shape == pair[1].shape)
