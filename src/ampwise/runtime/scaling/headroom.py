"""A loss scale that follows the measured size of the gradients, so that overflow is rare by design."""

import math
from dataclasses import dataclass, replace
from typing import Self

from ampwise.runtime.scaling.scale_numbers import SMALLEST_USEFUL_SCALE, TORCH_INIT_SCALE, refuse, scale_faults

SLACK = 1.5
"""Octaves of room over the target from which the scale rises; it falls below ``-0.25``. In between it stays, so that
noise in the statistics does not move it to and fro."""
DEFICIT = -0.25
RECENT, LONG = 0.99, 0.999
"""How much of the past a step leaves in each mean; LogMax's."""
UNMEASURED_MARGIN = 1.0
"""The margin after an overflow before anything was measured; how large it must be, the first measurement tells."""
SMALLEST_EXPONENT = -126
"""fp32's subnormal numbers count as this exponent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Running means of the largest gradient's exponent, in the order in which the device holds them.

    A mean over few steps is its first entry over its second; the same over many steps, and of the squares.
    """

    recent: float = 0.0
    recent_weight: float = 0.0
    mean: float = 0.0
    weight: float = 0.0
    square: float = 0.0
    margin: float = 0.0
    """Octaves kept free because gradients overflowed where the statistics saw room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomLossScale:
    """A power of two that leaves the largest gradient just below fp16's largest number.

    The largest gradient of a step is log-normal: its exponent has a mean and a deviation. The scale puts
    ``mean + num_deviations * deviation`` at ``largest_exponent`` (OpenSeq2Seq's LogMax). What is measured are the
    parameters' gradients; those of activations may be larger. So an overflow halves the scale and keeps that distance
    as a margin, which is given up again by steps of 1.5 octaves after every ``growth_interval`` finite steps. Where
    nobody measures, it moves as a dynamic scale does.

    Args:
        scale: what the loss is multiplied by now; rounded down to a power of two when it first moves.
        num_deviations: 3.09 leaves 1 step in 1000 above the limit, if exponents are normally distributed.
        largest_exponent: gradients are to stay below 2 to this power; fp16 ends just below 2^16.
        growth_interval: how many finite steps in a row it takes to give up margin.
        min_scale: the scale never falls below it.
        max_scale: the scale never grows above it.
        statistics: what was measured so far.
        growth_tracker: how many finite steps in a row there have been since margin was last taken or given up.
    """

    scale: float = TORCH_INIT_SCALE
    num_deviations: float = 3.09
    largest_exponent: int = 15
    growth_interval: int = 2000
    min_scale: float = SMALLEST_USEFUL_SCALE
    max_scale: float = 2.0**24
    statistics: Statistics = Statistics()
    growth_tracker: int = 0

    def __post_init__(self) -> None:
        faults = [
            fault for name in ("scale", "min_scale", "max_scale") for fault in scale_faults(name, getattr(self, name))
        ]
        if self.min_scale > self.max_scale:
            faults.append(f"min_scale {self.min_scale} is above max_scale {self.max_scale}")
        if not 0.0 <= self.num_deviations < math.inf:
            faults.append(f"num_deviations is {self.num_deviations}; it must be 0 or more")
        if self.growth_interval < 1:
            faults.append(f"growth_interval is {self.growth_interval}; it must be at least 1")
        refuse(faults, "HeadroomLossScale")

    def adjust(self, finite: bool, amax: float | None = None) -> Self:  # noqa: FBT001 - the law of every loss scale
        """The state after a step.

        Args:
            finite: whether its gradients were.
            amax: the magnitude of its largest unscaled gradient, an fp32 number; None where nobody measured it.
        """
        return self._after_finite(amax) if finite else self._after_overflow()

    def _after_finite(self, amax: float | None) -> Self:
        statistics = self.statistics
        if amax is not None and 0.0 < amax < math.inf:
            statistics = self._observed(exponent_of(amax))
        is_due = self.growth_tracker + 1 >= self.growth_interval
        if is_due:
            statistics = replace(statistics, margin=max(statistics.margin - SLACK, 0.0))
        tracker = 0 if is_due else self.growth_tracker + 1
        current = float(exponent_of(self.scale) - 1)
        if statistics.weight:
            target = self._target(statistics)
            if statistics.margin and not self.statistics.weight:
                statistics = replace(statistics, margin=max(target - current, 0.0))
            target -= statistics.margin
            stays = DEFICIT <= target - current < SLACK
            exponent = current if stays else float(math.floor(target))
        else:
            exponent = current + is_due
        return replace(self, scale=self._bounded(exponent), statistics=statistics, growth_tracker=tracker)

    def _after_overflow(self) -> Self:
        scale = self._bounded(float(exponent_of(self.scale) - 2))
        statistics, margin = self.statistics, UNMEASURED_MARGIN
        if statistics.weight:
            margin = self._target(statistics) - float(exponent_of(scale) - 1)
        statistics = replace(statistics, margin=max(margin, statistics.margin))
        return replace(self, scale=scale, statistics=statistics, growth_tracker=0)

    def _observed(self, exponent: int) -> Statistics:
        seen, value = self.statistics, float(exponent)
        return replace(
            seen,
            recent=seen.recent * RECENT + value * (1.0 - RECENT),
            recent_weight=seen.recent_weight * RECENT + (1.0 - RECENT),
            mean=seen.mean * LONG + value * (1.0 - LONG),
            weight=seen.weight * LONG + (1.0 - LONG),
            square=seen.square * LONG + value * value * (1.0 - LONG),
        )

    def _target(self, seen: Statistics) -> float:
        """The exponent at which the scale leaves the room wanted, before the margin."""
        mean = seen.mean / seen.weight
        variance = max(seen.square / seen.weight - mean * mean, 0.0)
        highest = seen.recent / seen.recent_weight + math.sqrt(variance) * self.num_deviations
        return self.largest_exponent - highest

    def _bounded(self, exponent: float) -> float:
        return min(max(math.ldexp(1.0, int(min(max(exponent, -126.0), 127.0))), self.min_scale), self.max_scale)


def exponent_of(magnitude: float) -> int:
    """The ``e`` with ``2^(e-1) <= magnitude < 2^e``, as the device reads it off fp32's bits."""
    return max(math.frexp(magnitude)[1], SMALLEST_EXPONENT)
