"""What is usual in a series of numbers, by statistics that outliers do not move."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

_NORMAL = 1.4826
"""The standard deviation of normally distributed numbers over their median absolute deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The middle of a series and how far its numbers usually lie from it."""

    median: float
    deviation: float
    """The median absolute deviation, times 1.4826: for normally distributed numbers their standard deviation."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of at least one finite number."""
        median = statistics.median(values)
        away = statistics.median([abs(one - median) for one in values])
        return cls(median=median, deviation=_NORMAL * away)

    def threshold(self, num_deviations: float, *, at_least: float = 0.0) -> float:
        """The number that lies so many deviations above the middle, and no less than ``at_least`` above it."""
        return self.median + max(num_deviations * self.deviation, at_least)


def with_latest(values: tuple[float, ...], value: float | None, *, window: int) -> tuple[float, ...]:
    """The last ``window`` numbers after one more; what is not finite is left out."""
    return values if value is None or not math.isfinite(value) else (*values, value)[-window:]
