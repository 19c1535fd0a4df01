"""Encodes, decodes and rounds one number exactly: the specification that fast versions are tested against.

Rationals are exact, so nothing here rounds twice. Speed is not a goal.
"""

import math
from fractions import Fraction

from ampwise.formats.spec import FloatFormat

Number = float | Fraction
"""A finite rational, or a float that may be infinite, NaN or negative zero."""


def decode(code: int, format_: FloatFormat) -> float:
    """Which number ``code`` stands for; exact, since every format here fits into fp64.

    Raises:
        ValueError: ``code`` has more bits than the format.
    """
    if not 0 <= code < 2 * format_.sign_code:
        raise ValueError(f"{code:#x} is not a code of {format_.name}, which has {format_.num_bits} bits")
    sign, magnitude = (-1.0, code ^ format_.sign_code) if code & format_.sign_code else (1.0, code)
    if magnitude == format_.inf_code and format_.has_inf:
        return sign * math.inf
    if magnitude > format_.max_code:
        return math.nan
    exponent = magnitude >> format_.mantissa_bits
    mantissa = magnitude & ((1 << format_.mantissa_bits) - 1)
    if exponent:
        mantissa |= 1 << format_.mantissa_bits
    return sign * math.ldexp(mantissa, max(exponent, 1) - format_.bias - format_.mantissa_bits)


def encode(value: Number, format_: FloatFormat, *, saturate: bool = False) -> int:
    """The code of the format's number nearest to ``value``; of two equally near, the even one.

    Overflow gives infinity, or NaN where the format has no infinity. With ``saturate`` the finite values beyond
    ``max`` give ``max``; infinity and NaN stay what they are, as far as the format can say so.
    """
    if isinstance(value, float) and math.isnan(value):
        return format_.nan_code
    sign = format_.sign_code if _is_negative(value) else 0
    if isinstance(value, float) and math.isinf(value):
        return sign | format_.inf_code
    code = _nearest_code(abs(Fraction(value)), format_)
    if code > format_.max_code:
        code = format_.max_code if saturate else format_.inf_code
    return sign | code


def round_to(value: Number, format_: FloatFormat, *, saturate: bool = False) -> float:
    """What ``value`` becomes when stored in the format; see ``encode``."""
    return decode(encode(value, format_, saturate=saturate), format_)


def _is_negative(value: Number) -> bool:
    return math.copysign(1.0, value) < 0 if isinstance(value, float) else value < 0


def _nearest_code(magnitude: Fraction, format_: FloatFormat) -> int:
    """The code nearest to a finite magnitude, as if the exponent had no upper end.

    Codes of ascending magnitudes ascend by one, across binades too: a carry out of the mantissa is a step up.
    """
    if not magnitude:
        return 0
    exponent = max(_floor_log2(magnitude), format_.min_exponent)
    steps = round(magnitude / Fraction(2) ** (exponent - format_.mantissa_bits))  # ties to even
    return (exponent - format_.min_exponent << format_.mantissa_bits) + steps


def _floor_log2(magnitude: Fraction) -> int:
    """The largest ``k`` with ``2**k <= magnitude``."""
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if magnitude >= Fraction(2) ** guess else guess - 1
