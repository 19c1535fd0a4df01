"""Laws of rounding, over all formats."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwise.formats import FORMATS, get_format
from ampwise.formats.scalar import decode, encode, round_to

formats = st.sampled_from(list(FORMATS.values()))
floats = st.floats(width=64)
finite = st.floats(width=64, allow_nan=False, allow_infinity=False)
rationals = st.fractions()


def _same(a, b):
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@given(floats)
def test_fp64_is_pythons_float(value):
    fp64 = get_format("fp64")
    assert _same(round_to(value, fp64), value)
    if not math.isnan(value):
        assert encode(value, fp64) == int(np.float64(value).view(np.uint64))


@given(floats)
def test_fp32_is_numpys_float32(value):
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        expected = np.float64(value).astype(np.float32)
    fp32 = get_format("fp32")
    assert _same(round_to(value, fp32), float(expected))
    if not math.isnan(value):
        assert encode(value, fp32) == int(expected.view(np.uint32))


@given(st.integers(0, 2**32 - 1))
def test_every_code_of_fp32_means_what_numpy_says(code):
    assert _same(decode(code, get_format("fp32")), float(np.uint32(code).view(np.float32)))


@given(rationals)
def test_a_rational_rounds_to_fp64_as_python_divides(value):
    expected = value.numerator / value.denominator
    assert round_to(value, get_format("fp64")) == expected


@given(floats, formats)
def test_rounding_twice_is_rounding_once(value, format_):
    once = round_to(value, format_)
    assert _same(round_to(once, format_), once)


@given(floats, formats)
def test_rounding_is_odd(value, format_):
    assert _same(round_to(-value, format_), -round_to(value, format_))


@given(finite, finite, formats)
def test_rounding_keeps_order(a, b, format_):
    low, high = sorted((a, b))
    rounded_low, rounded_high = (round_to(x, format_, saturate=True) for x in (low, high))
    assert rounded_low <= rounded_high


@given(finite, formats)
def test_the_error_is_at_most_half_an_ulp(value, format_):
    rounded = round_to(value, format_, saturate=True)
    if abs(value) <= format_.max:
        assert abs(Fraction(rounded) - Fraction(value)) * 2 <= Fraction(format_.ulp(value))
    else:
        assert abs(rounded) == format_.max


@given(finite, formats)
def test_the_thresholds_say_where_rounding_leaves_the_finite_numbers(value, format_):
    magnitude = Fraction(abs(value))
    rounded = round_to(value, format_)
    at, above = magnitude == format_.overflow_threshold, magnitude > format_.overflow_threshold
    assert (not math.isfinite(rounded)) == (above or (at and format_.overflows_at_threshold))
    assert (rounded == 0) == (magnitude <= format_.underflow_threshold)


@given(st.data(), formats)
def test_neighbouring_codes_are_one_ulp_apart(data, format_):
    code = data.draw(st.integers(0, format_.max_code - 1))
    low, high = decode(code, format_), decode(code + 1, format_)
    assert high - low == format_.ulp(low)


@pytest.mark.parametrize("format_", FORMATS.values(), ids=lambda f: f.name)
def test_the_thresholds_themselves(format_):
    past_the_end = encode(format_.overflow_threshold, format_) == format_.inf_code
    assert past_the_end == format_.overflows_at_threshold
    assert round_to(format_.underflow_threshold, format_) == 0
    assert round_to(format_.underflow_threshold * (1 + Fraction(1, 2**80)), format_) == format_.smallest_subnormal
