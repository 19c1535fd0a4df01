"""How large the numbers of a tensor are, and what that means for a format. Plain data; holds no tensor.

Instruments add what they measure of a run here; this part is what they share with the loss scale: the histogram that
``observe.statistics`` counts on the device, and what it says of a format.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ampwise.formats.spec import FloatFormat
from ampwise.records.checks import CHECKS

BINS_AN_OCTAVE = 8
"""Bins from one power of two to the next; each is an eighth of the lower one wide."""
NUM_BINS = 256 * BINS_AN_OCTAVE
"""Bins of a histogram: fp32's exponent and the first three bits of its mantissa."""
INF_BIN = 255 * BINS_AN_OCTAVE
"""The bin of infinity; those above it hold NaN."""
_BIAS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeHistogram:
    """How many of a tensor's finite numbers lie in each bin of magnitude, signs aside."""

    __pydantic_config__: ClassVar = CHECKS

    num_zeros: int
    num_infinite: int
    num_nan: int
    first_bin: int = 0
    """The lowest bin that holds a number; ``counts`` begins there."""
    counts: tuple[int, ...] = ()
    """Non-zero finite numbers from ``first_bin`` on, one entry a bin; ends with the highest bin that holds one."""

    @classmethod
    def from_counts(cls, counts: Sequence[int]) -> "MagnitudeHistogram":
        """What ``observe.statistics.magnitude_counts`` counted, read from the device: 2048 bins, then the zeros."""
        held = [place for place, count in enumerate(counts[:INF_BIN]) if count]
        first, end = (held[0], held[-1] + 1) if held else (0, 0)
        return cls(
            num_zeros=counts[NUM_BINS],
            num_infinite=counts[INF_BIN],
            num_nan=sum(counts[INF_BIN + 1 : NUM_BINS]),
            first_bin=first,
            counts=tuple(counts[first:end]),
        )

    @property
    def num_nonzero(self) -> int:
        """How many of the numbers are finite and not zero."""
        return sum(self.counts)

    @property
    def num_elements(self) -> int:
        """How many numbers there are."""
        return self.num_nonzero + self.num_zeros + self.num_infinite + self.num_nan

    def merged(self, other: "MagnitudeHistogram") -> "MagnitudeHistogram":
        """The histogram of both tensors together."""
        parts = [one for one in (self, other) if one.counts]
        first = min((one.first_bin for one in parts), default=0)
        end = max((one.first_bin + len(one.counts) for one in parts), default=0)
        counts = [0] * (end - first)
        for one in parts:
            for place, count in enumerate(one.counts, one.first_bin - first):
                counts[place] += count
        return MagnitudeHistogram(
            num_zeros=self.num_zeros + other.num_zeros,
            num_infinite=self.num_infinite + other.num_infinite,
            num_nan=self.num_nan + other.num_nan,
            first_bin=first,
            counts=tuple(counts),
        )

    def bins(self) -> Iterator[tuple[int, int]]:
        """Every bin that holds numbers, with how many."""
        yield from ((place, count) for place, count in enumerate(self.counts, self.first_bin) if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeVerdict:
    """What becomes of a tensor's finite numbers, multiplied by a scale, when a format holds them.

    The shares are of the numbers that are finite and not zero; all are 0 where there are none.
    """

    __pydantic_config__: ClassVar = CHECKS

    format: str
    scale: float
    num_nonzero: int
    overflowing: float
    """Share that becomes infinite, or NaN where the format has no infinity."""
    subnormal: float
    """Share held with fewer digits than the format has, for the numbers lie below its smallest normal one."""
    flushed: float
    """Share that becomes zero."""


def range_verdict(histogram: MagnitudeHistogram, format_: FloatFormat, *, scale: float = 1.0) -> RangeVerdict:
    """What share of the numbers overflows, is subnormal or becomes zero in ``format_`` after multiplying by ``scale``.

    Numbers in the one bin that a limit cuts are judged by the bin's middle. With a scale that is a power of two only
    two limits cut a bin: those from fp16's 65520 and bf16's largest number up to infinity are not seen to overflow,
    and e4m3's from 464 to 480; and a number that is exactly half the smallest subnormal is not seen to become zero.

    Args:
        histogram: of the numbers before they are scaled.
        format_: what is to hold them; a row of ``formats.FORMATS``.
        scale: positive and finite; for gradients, the loss scale.
    """
    factor, limit, floor = Fraction(scale), format_.overflow_threshold, format_.underflow_threshold
    normal = Fraction(format_.smallest_normal)
    overflowing = subnormal = flushed = 0
    for place, count in histogram.bins():
        magnitude = middle_of(place) * factor
        if magnitude > limit or (magnitude == limit and format_.overflows_at_threshold):
            overflowing += count
        elif magnitude <= floor:
            flushed += count
        elif magnitude < normal:
            subnormal += count
    total = histogram.num_nonzero
    shares = [count / total if total else 0.0 for count in (overflowing, subnormal, flushed)]
    return RangeVerdict(
        format=format_.name,
        scale=scale,
        num_nonzero=total,
        overflowing=shares[0],
        subnormal=shares[1],
        flushed=shares[2],
    )


def bin_of(magnitude: float) -> int:
    """Which bin a positive finite number is counted in: the first below fp32's subnormals, the last above its largest.

    The specification of ``observe.statistics``; one number at a time.
    """
    mantissa, exponent = math.frexp(magnitude)
    if exponent - 1 < 1 - _BIAS:
        return int(math.ldexp(magnitude, _BIAS - 1 + 3))
    eighths = int(mantissa * 2 * BINS_AN_OCTAVE) - BINS_AN_OCTAVE
    return min((exponent - 1 + _BIAS) * BINS_AN_OCTAVE + eighths, INF_BIN - 1)


def lower_edge(place: int) -> Fraction:
    """The smallest magnitude of a bin; the first bin's is 0, which it does not hold."""
    exponent, eighths = divmod(place, BINS_AN_OCTAVE)
    implied = BINS_AN_OCTAVE if exponent else 0
    return Fraction(implied + eighths, BINS_AN_OCTAVE) * Fraction(2) ** (max(exponent, 1) - _BIAS)


def middle_of(place: int) -> Fraction:
    """The magnitude halfway between a bin's edges."""
    return (lower_edge(place) + lower_edge(place + 1)) / 2
