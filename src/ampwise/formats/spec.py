"""What a binary floating-point format is: a row of bit widths, and the limits that follow from it."""

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction


class Specials(StrEnum):
    """Which codes are not finite numbers."""

    IEEE = "ieee"
    """The largest exponent holds infinity and NaN."""
    NAN_ONLY = "nan_only"
    """No infinity; only the code of all ones is NaN (OCP's ``e4m3fn``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    """A floating-point format with a sign bit, subnormals and rounding to nearest even.

    Limits are ``float`` (fp64), exact for every format here.
    """

    name: str
    """As users say it: ``bf16``."""
    title: str
    """What it is called where it is defined: ``IEEE binary16``."""
    exponent_bits: int
    mantissa_bits: int
    """Explicit bits; a normal number has one more, implied."""
    bias: int
    """Subtracted from the stored exponent."""
    specials: Specials
    storage_bits: int
    """Bits one number takes in memory; tf32 is stored as fp32."""
    aliases: tuple[str, ...] = ()
    """Other names users give it."""

    @property
    def num_bits(self) -> int:
        """How many bits a code has: sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def sign_code(self) -> int:
        """The code of the sign bit alone (negative zero)."""
        return 1 << (self.num_bits - 1)

    @property
    def nan_code(self) -> int:
        """The code of the quiet NaN that encoding yields."""
        match self.specials:
            case Specials.IEEE:
                return self.inf_code | 1 << (self.mantissa_bits - 1)
            case Specials.NAN_ONLY:
                return self.sign_code - 1

    @property
    def inf_code(self) -> int:
        """The code of positive infinity; where there is none, of the NaN that stands for overflow."""
        match self.specials:
            case Specials.IEEE:
                return (1 << self.exponent_bits) - 1 << self.mantissa_bits
            case Specials.NAN_ONLY:
                return self.sign_code - 1

    @property
    def max_code(self) -> int:
        """The code of the largest finite number."""
        return self.inf_code - 1

    @property
    def has_inf(self) -> bool:
        """Whether overflow gives infinity rather than NaN."""
        return self.specials is Specials.IEEE

    @property
    def min_exponent(self) -> int:
        """The power of two of the smallest normal number; subnormals share it."""
        return 1 - self.bias

    @property
    def max(self) -> float:
        """The largest finite number."""
        exponent = (self.max_code >> self.mantissa_bits) - self.bias
        mantissa = self.max_code & ((1 << self.mantissa_bits) - 1) | 1 << self.mantissa_bits
        return math.ldexp(mantissa, exponent - self.mantissa_bits)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with the full number of digits."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """The distance from 1.0 to the next larger number."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def max_exact_integer(self) -> int:
        """The largest whole number up to which every whole number is held exactly."""
        return min(1 << (self.mantissa_bits + 1), int(self.max))

    @property
    def overflow_threshold(self) -> Fraction:
        """Half a step above ``max``, where rounding leaves the finite numbers.

        The threshold itself overflows unless ``max`` is even (``overflows_at_threshold``).
        """
        return Fraction(self.max) + Fraction(self.ulp(self.max)) / 2

    @property
    def overflows_at_threshold(self) -> bool:
        """Whether the threshold itself overflows: a tie goes to the even neighbour, which may be ``max``."""
        return bool(self.max_code & 1)

    @property
    def underflow_threshold(self) -> Fraction:
        """The largest magnitude that rounds to zero: half the smallest subnormal."""
        return Fraction(self.smallest_subnormal) / 2

    def ulp(self, x: float) -> float:
        """How far apart the format's numbers are around ``x``.

        Above ``max`` the answer is the spacing just below it; infinity and NaN give themselves, as in ``math.ulp``.
        """
        if not math.isfinite(x):
            return abs(x)
        magnitude = min(abs(x), self.max)
        exponent = math.frexp(magnitude)[1] - 1 if magnitude else self.min_exponent
        return math.ldexp(1.0, max(exponent, self.min_exponent) - self.mantissa_bits)
