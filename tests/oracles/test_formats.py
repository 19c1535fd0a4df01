"""Every code of every narrow format, against ml_dtypes and numpy."""

import math
from fractions import Fraction
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

from ampwise.formats import FORMATS, get_format
from ampwise.formats.scalar import decode, encode, round_to

ORACLES = {
    "bf16": (ml_dtypes.bfloat16, np.uint16),
    "fp16": (np.float16, np.uint16),
    "fp8_e4m3": (ml_dtypes.float8_e4m3fn, np.uint8),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, np.uint8),
}
NARROW = pytest.mark.parametrize("name", ORACLES)


def _codes(name):
    return range(1 << get_format(name).num_bits)


def _oracle_decode(name):
    dtype, container = ORACLES[name]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.arange(1 << get_format(name).num_bits).astype(container).view(dtype).astype(np.float64)


def _oracle_encode(name, values):
    dtype, container = ORACLES[name]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(values, np.float64).astype(dtype).view(container).astype(int).tolist()


def test_every_narrow_format_has_an_oracle():
    assert {row.name for row in FORMATS.values() if row.storage_bits <= 16} == set(ORACLES)


@NARROW
def test_every_code_decodes_as_the_oracle_says(name):
    ours = np.array([decode(code, get_format(name)) for code in _codes(name)])
    oracle = _oracle_decode(name)
    np.testing.assert_array_equal(ours, oracle)
    numbers = ~np.isnan(oracle)
    assert (np.signbit(ours) == np.signbit(oracle))[numbers].all()


@NARROW
def test_every_code_survives_a_round_trip(name):
    format_ = get_format(name)
    for code in _codes(name):
        value = decode(code, format_)
        expected = format_.nan_code if math.isnan(value) else code
        assert encode(value, format_) == expected


@NARROW
def test_every_midpoint_and_its_neighbours_round_as_the_oracle_says(name):
    format_ = get_format(name)
    positive = [decode(code, format_) for code in range(format_.max_code + 1)]
    midpoints = [(low + high) / 2 for low, high in pairwise(positive)]
    midpoints.append(float(format_.overflow_threshold))
    # ml_dtypes converts by way of fp32 and so rounds fp64's neighbours twice; numpy's fp16 is direct
    step = np.float64 if name == "fp16" else np.float32
    near = [
        float(value)
        for m in map(step, midpoints)
        for value in (m, np.nextafter(m, step(0)), np.nextafter(m, step(math.inf)))
    ]
    assert near[::3] == midpoints
    assert [encode(value, format_) for value in near] == _oracle_encode(name, near)
    assert [encode(-value, format_) for value in near[:3000]] == _oracle_encode(name, [-v for v in near[:3000]])


@NARROW
def test_special_values_encode_as_the_oracle_says(name):
    format_ = get_format(name)
    values = [0.0, -0.0, math.inf, -math.inf, 1e300, -1e300, 5e-324]
    assert [encode(value, format_) for value in values] == _oracle_encode(name, values)
    assert math.isnan(round_to(math.nan, format_))


@NARROW
def test_limits_are_those_of_finfo(name):
    format_, info = get_format(name), ml_dtypes.finfo(ORACLES[name][0])
    limits = (format_.max, format_.smallest_normal, format_.smallest_subnormal, format_.eps)
    assert limits == tuple(map(float, (info.max, info.smallest_normal, info.smallest_subnormal, info.eps)))


@pytest.mark.parametrize(("name", "dtype"), [("fp32", np.float32), ("fp64", np.float64)])
def test_limits_of_the_wide_formats_are_numpys(name, dtype):
    format_, info = get_format(name), np.finfo(dtype)
    limits = (format_.max, format_.smallest_normal, format_.smallest_subnormal, format_.eps)
    assert limits == tuple(map(float, (info.max, info.smallest_normal, info.smallest_subnormal, info.eps)))


def test_tf32_is_fp32_rounded_to_ten_mantissa_bits():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x7F7FFFFF, 20_000, dtype=np.uint32)
    # round half to even on the 13 bits that go
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) >> 13) << 13
    values, expected = bits.view(np.float32), rounded.view(np.float32)
    tf32 = get_format("tf32")
    assert [round_to(float(v), tf32) for v in values] == [float(v) for v in expected]


def test_a_rational_is_not_rounded_twice():
    just_above_the_tie = Fraction(1) + Fraction(1, 2**11) + Fraction(1, 10**30)
    assert float(just_above_the_tie) == 1 + 2**-11, "fp64 cannot tell it from the tie"
    assert round_to(just_above_the_tie, get_format("fp16")) == 1 + 2**-10
    assert round_to(1 + 2**-11, get_format("fp16")) == 1.0
