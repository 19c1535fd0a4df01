"""How large the numbers of a tensor are, and what that means for a format. Plain data; holds no tensor.

Instruments add what they measure of a run here; this part is what they share with the loss scale: the histogram that
``observe.statistics`` counts on the device, and what it says of a format.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
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


class TensorKind(StrEnum):
    """Which of a module's tensors."""

    ACTIVATION = "activation"
    """What its forward gives; several outputs, and several calls, are counted together."""
    GRADIENT = "gradient"
    """Of the loss with respect to its activation, as it flows in backward: the loss scale is in it."""
    WEIGHT = "weight"
    """Before the optimizer's step."""
    WEIGHT_GRADIENT = "weight_gradient"
    """As it lies in ``.grad`` when backward has ended; whether the loss scale is in it says ``is_scaled``."""
    UPDATE = "update"
    """What the optimizer's step added to the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledStep:
    """One step in which tensors were measured."""

    __pydantic_config__: ClassVar = CHECKS

    index: int
    """Of the optimizer step, counted from 0 as in ``StepRecord``."""
    scale: float | None = None
    """The loss scale of this step; None without loss scaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostUpdates:
    """How many updates of a weight are too small for the format that holds it: it stays as it was."""

    __pydantic_config__: ClassVar = CHECKS

    format: str
    """As users say it: the weight's own format, or one it might be kept in."""
    is_own: bool
    """The weights are kept in this format, so these updates were lost; else they would be."""
    num_lost: int
    """|update| < ulp(weight) / 2; in the weight's own format, whose updates are seen after rounding: the weight did
    not change although its gradient was not zero."""
    num_updates: int
    """Elements looked at whose gradient was not zero (own format), or whose update was not."""

    @property
    def share(self) -> float:
        """Of the updates, how many are lost; 0 where there are none."""
        return self.num_lost / self.num_updates if self.num_updates else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStatistics:
    """One tensor of one module in all the steps in which it was measured."""

    __pydantic_config__: ClassVar = CHECKS

    module: str
    """Its path, as in ``Site``."""
    module_kind: str
    """Its class."""
    kind: TensorKind
    parameter: str | None = None
    """The parameter's name in the module, such as ``weight``; None for activations and their gradients."""
    dtype: str
    """The format it was held in, as users say it; of the last step that saw it."""
    num_elements: int
    """In one step."""
    is_scaled: bool = False
    """The loss scale was in the numbers, in each step that step's own."""
    amax: tuple[float | None, ...] = ()
    """The largest magnitude of all elements, one entry for each of ``NumericsRecord.steps``; infinite or NaN where an
    element was; None where it was not seen. Of an update: of the elements that the histogram counts."""
    histogram: MagnitudeHistogram
    """Of at most 4,096 evenly spread elements a tensor and step, all steps together, as the loop held them."""
    lost: tuple[LostUpdates, ...] = ()
    """Of an update: in the weight's own format first."""
    rank: int | None = None
    """Of several that trained together, the one with the largest number; None where one process trained alone."""

    @property
    def max_amax(self) -> float | None:
        """The largest finite ``amax`` of any step."""
        return max((one for one in self.amax if one is not None and math.isfinite(one)), default=None)

    @property
    def num_non_finite_steps(self) -> int:
        """In how many sampled steps an element was infinite or NaN."""
        return sum(one is not None and not math.isfinite(one) for one in self.amax)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsRecord:
    """How large the numbers of a run were, per module and kind of tensor, in a sample of its steps."""

    __pydantic_config__: ClassVar = CHECKS

    num_steps: int
    """Steps that ended while the instrument was on."""
    steps: tuple[SampledStep, ...]
    """Those that were measured."""
    tensors: tuple[TensorStatistics, ...]
    every: int
    """One step in so many was measured, until an alarm."""
    alarms: tuple[int, ...] = ()
    """Steps after which it was measured more often: something was not finite, or a step was skipped."""
    cost_ms: float = 0.0
    """What measuring added to a step of the host's time, on average over all steps."""
    note: str | None = None
    """Why something was not measured."""

    @property
    def final_scale(self) -> float | None:
        """The loss scale of the last sampled step that had one."""
        return next((step.scale for step in reversed(self.steps) if step.scale is not None), None)

    def verdict(self, tensor: TensorStatistics, format_: FloatFormat, *, scale: float | None = None) -> RangeVerdict:
        """What share of ``tensor`` overflows, is subnormal or becomes zero in ``format_``.

        Args:
            tensor: one of ``tensors``.
            format_: what is to hold it.
            scale: the loss scale to suppose; None takes the numbers as they were. Only what the loss scale is in, or
                would be (gradients), depends on it. It supposes that the final scale was in all sampled steps.
        """
        is_gradient = tensor.kind in {TensorKind.GRADIENT, TensorKind.WEIGHT_GRADIENT}
        if scale is None or not is_gradient:
            return range_verdict(tensor.histogram, format_)
        held = (self.final_scale or 1.0) if tensor.is_scaled else 1.0
        return range_verdict(tensor.histogram, format_, scale=scale / held)
