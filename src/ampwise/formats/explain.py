"""What a format holds and what a number becomes in each: the facts, without their wording."""

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from ampwise._base.errors import UsageError
from ampwise._base.text import inert_line
from ampwise.formats.hardware import CPU_INSTRUCTIONS, GPUS, least_compute_capability
from ampwise.formats.scalar import Number, round_to
from ampwise.formats.spec import FloatFormat
from ampwise.formats.table import FORMATS, get_format

COMMON_SCALES = (1, 8, 256, 1024, 65536)
"""Loss scales people try; the last is ``GradScaler``'s first."""
_PROBE = 0.0005
_MAX_EXPONENT = 5_000
_POWER = re.compile(r"([+-]?)(\d{1,9})(?:\*\*|\^)([+-]?\d+)")
_NO_RATIONAL = re.compile(r"[+-]?(nan|inf|infinity)")
_DECIMAL = re.compile(r"[+-]?[\d._]+e([+-]?\d+)")


class Outcome(StrEnum):
    """What happens to a number that is stored in a format."""

    EXACT = "exact"
    ROUNDED = "rounded"
    SUBNORMAL = "subnormal"
    """Kept with fewer digits than the format has elsewhere."""
    ZERO = "zero"
    """Underflow: too small to be told from 0."""
    OVERFLOW = "overflow"
    """Too large: infinity, or NaN where the format has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a number becomes in one format."""

    format: str
    becomes: float
    outcome: Outcome
    relative_error: float | None
    """None where there is none to speak of: for 0, infinity, NaN, and on overflow."""
    ulp: float
    """Spacing of the format's numbers there."""
    one_plus: float
    """What 1.0 plus the number, once stored, comes out as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledGradient:
    """What a gradient becomes in fp16 under one loss scale."""

    scale: int
    becomes: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling:
    """Which loss scales save a gradient in fp16."""

    smallest_nonzero: int | None
    """Smallest power of two that keeps it from becoming 0; None if none does."""
    smallest_normal: int | None
    """Smallest power of two that keeps all its digits; None if none does."""
    common: tuple[ScaledGradient, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFacts:
    """What a number becomes in every format."""

    given: str
    images: tuple[Image, ...]
    loss_scaling: LossScaling | None
    """None for 0, infinity and NaN, which no scale changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """What a format holds, and what is fast in it."""

    name: str
    title: str
    aliases: tuple[str, ...]
    exponent_bits: int
    mantissa_bits: int
    storage_bits: int
    max: float
    overflow_threshold: float | None
    """Where rounding leaves the finite numbers; None for fp64, where no float says it."""
    overflows_at_threshold: bool
    """Whether the threshold itself overflows, or only what lies above."""
    overflows_to: float
    smallest_normal: float
    smallest_subnormal: float
    underflow_threshold: float | None
    """At or below it everything becomes 0; None for fp64."""
    eps: float
    max_exact_integer: int
    one_plus_half_thousandth: float
    """What 1.0 + 0.0005 comes out as."""
    least_compute_capability: tuple[int, int] | None
    """From which on NVIDIA's tensor cores multiply it; None if none do."""
    gpus: tuple[str, ...]
    """Keys of the GPUs whose tensor cores multiply it."""
    cpu_flags: tuple[str, ...]
    """CPU flags of the instructions that multiply it."""


def parse_number(text: str) -> Number | None:
    """The number that ``text`` writes, exactly: ``1e-8``, ``-3e5``, ``2^-24``, ``1/3``, ``nan``, ``inf``; else None.

    Raises:
        UsageError: it is a number far beyond every format.
    """
    word = text.strip().lower()
    power = _POWER.fullmatch(word)
    exponent = power[3] if power else (_DECIMAL.fullmatch(word) or ("", "0"))[1]
    if len(exponent) > 6 or abs(int(exponent)) > _MAX_EXPONENT:  # 10**exponent must not fill the memory
        shown = inert_line(text, max_length=60)
        raise UsageError(f'"{shown}" is far beyond every format; keep its exponent within {_MAX_EXPONENT}')
    try:
        if power:
            magnitude = Fraction(int(power[2])) ** int(power[3])
            return -magnitude if power[1] == "-" else magnitude
        value = float(word) if _NO_RATIONAL.fullmatch(word) else Fraction(word)
        return value or (-0.0 if word.startswith("-") else 0.0)  # a fraction has no negative zero
    except (ValueError, ZeroDivisionError):
        return None


def explain_number(value: Number, *, given: str) -> NumberFacts:
    """What ``value`` becomes in every format, and which loss scales would save a gradient of that size."""
    return NumberFacts(
        given=given,
        images=tuple(_image(value, format_) for format_ in FORMATS.values()),
        loss_scaling=_loss_scaling(value) if isinstance(value, Fraction) else None,
    )


def explain_format(format_: FloatFormat) -> FormatFacts:
    """What ``format_`` holds, and which hardware is fast in it."""
    return FormatFacts(
        name=format_.name,
        title=format_.title,
        aliases=format_.aliases,
        exponent_bits=format_.exponent_bits,
        mantissa_bits=format_.mantissa_bits,
        storage_bits=format_.storage_bits,
        max=format_.max,
        overflow_threshold=_as_float(format_.overflow_threshold),
        overflows_at_threshold=format_.overflows_at_threshold,
        overflows_to=round_to(math.inf, format_),
        smallest_normal=format_.smallest_normal,
        smallest_subnormal=format_.smallest_subnormal,
        underflow_threshold=_as_float(format_.underflow_threshold),
        eps=format_.eps,
        max_exact_integer=format_.max_exact_integer,
        one_plus_half_thousandth=round_to(1 + _PROBE, format_),
        least_compute_capability=least_compute_capability(format_.name),
        gpus=tuple(gpu.key for gpu in GPUS.values() if format_.name in gpu.tensor_core_formats),
        cpu_flags=tuple(row.flag for row in CPU_INSTRUCTIONS if row.format == format_.name),
    )


def outcome_of(value: Number, format_: FloatFormat) -> Outcome:
    """What happens to ``value`` when it is stored in ``format_``."""
    rounded = round_to(value, format_)
    if not isinstance(value, Fraction) and not math.isfinite(value):
        return Outcome.EXACT if math.isnan(value) or format_.has_inf else Outcome.OVERFLOW
    if not math.isfinite(rounded):
        return Outcome.OVERFLOW
    if rounded == 0 and value:
        return Outcome.ZERO
    if 0 < abs(rounded) < format_.smallest_normal:
        return Outcome.SUBNORMAL
    return Outcome.EXACT if rounded == value else Outcome.ROUNDED


def _image(value: Number, format_: FloatFormat) -> Image:
    becomes = round_to(value, format_)
    return Image(
        format=format_.name,
        becomes=becomes,
        outcome=outcome_of(value, format_),
        relative_error=_relative_error(value, becomes),
        ulp=format_.ulp(becomes),
        one_plus=round_to(1 + Fraction(becomes) if math.isfinite(becomes) else becomes, format_),
    )


def _relative_error(value: Number, becomes: float) -> float | None:
    if not isinstance(value, Fraction) or not math.isfinite(becomes):
        return None
    return float(abs(Fraction(becomes) - value) / abs(value))


def _loss_scaling(value: Fraction) -> LossScaling:
    fp16 = get_format("fp16")
    return LossScaling(
        smallest_nonzero=_smallest_scale(value, avoid=(Outcome.ZERO,)),
        smallest_normal=_smallest_scale(value, avoid=(Outcome.ZERO, Outcome.SUBNORMAL)),
        common=tuple(
            ScaledGradient(scale=scale, becomes=round_to(value * scale, fp16), outcome=outcome_of(value * scale, fp16))
            for scale in COMMON_SCALES
        ),
    )


def _smallest_scale(value: Fraction, *, avoid: tuple[Outcome, ...]) -> int | None:
    """The smallest power of two from 1 that leads to none of ``avoid``, nor to overflow.

    The true gradient is kept in fp32, after unscaling: what fp32 cannot hold no scale saves.
    """
    if not round_to(value, get_format("fp32")):
        return None
    fp16, scale = get_format("fp16"), 1
    while (outcome := outcome_of(value * scale, fp16)) in avoid:
        scale *= 2
    return None if outcome is Outcome.OVERFLOW else scale


def _as_float(limit: Fraction) -> float | None:
    """``limit`` as a float, or None where only a wider format than fp64 could hold it."""
    try:
        return float(limit) or None
    except OverflowError:
        return None
