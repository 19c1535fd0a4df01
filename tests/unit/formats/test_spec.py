import math

import pytest

from ampwise.formats import get_format
from ampwise.formats.scalar import decode, encode, round_to


@pytest.mark.parametrize(
    ("name", "largest", "smallest_normal", "smallest_subnormal", "eps"),
    [
        ("fp32", 3.4028234663852886e38, 2**-126, 2**-149, 2**-23),
        ("tf32", 3.4011621342146535e38, 2**-126, 2**-136, 2**-10),
        ("bf16", 3.3895313892515355e38, 2**-126, 2**-133, 2**-7),
        ("fp16", 65504, 2**-14, 2**-24, 2**-10),
        ("fp8_e4m3", 448, 2**-6, 2**-9, 2**-3),
        ("fp8_e5m2", 57344, 2**-14, 2**-16, 2**-2),
    ],
)
def test_limits(name, largest, smallest_normal, smallest_subnormal, eps):
    format_ = get_format(name)
    assert (format_.max, format_.smallest_normal) == (largest, smallest_normal)
    assert (format_.smallest_subnormal, format_.eps) == (smallest_subnormal, eps)


def test_fp16_overflows_at_65520_and_underflows_at_2_to_the_minus_25():
    fp16 = get_format("fp16")
    assert fp16.overflow_threshold == 65520
    assert fp16.overflows_at_threshold
    assert fp16.underflow_threshold == 2**-25


def test_e4m3_keeps_its_threshold_because_its_largest_number_is_even():
    e4m3 = get_format("fp8_e4m3")
    assert e4m3.overflow_threshold == 464
    assert round_to(464.0, e4m3) == 448
    assert math.isnan(round_to(465.0, e4m3))
    assert math.isnan(round_to(math.inf, e4m3))


def test_saturation_keeps_the_largest_number_but_not_infinity():
    fp16, e4m3 = get_format("fp16"), get_format("fp8_e4m3")
    assert round_to(1e6, fp16, saturate=True) == 65504
    assert round_to(-1e6, e4m3, saturate=True) == -448
    assert round_to(math.inf, fp16, saturate=True) == math.inf


def test_ulp_at_one_makes_one_and_a_half_thousandth_come_out_as_1_001():
    fp16 = get_format("fp16")
    assert fp16.ulp(1.0) == fp16.eps
    assert round_to(1.0005, fp16) == 1 + 2**-10


@pytest.mark.parametrize(
    ("x", "expected"), [(0.0, 2**-24), (1e-7, 2**-24), (1.99, 2**-10), (2.0, 2**-9), (-2.0, 2**-9)]
)
def test_ulp(x, expected):
    assert get_format("fp16").ulp(x) == expected


def test_ulp_past_the_end_is_the_last_spacing_and_not_finite_stays():
    fp16 = get_format("fp16")
    assert fp16.ulp(1e9) == fp16.ulp(65504) == 32
    assert fp16.ulp(-math.inf) == math.inf
    assert math.isnan(fp16.ulp(math.nan))


@pytest.mark.parametrize(("name", "limit"), [("fp16", 2048), ("bf16", 256), ("fp8_e4m3", 16), ("fp32", 2**24)])
def test_whole_numbers_are_exact_up_to_the_limit(name, limit):
    format_ = get_format(name)
    assert format_.max_exact_integer == limit
    assert round_to(float(limit), format_) == limit
    assert round_to(float(limit + 1), format_) != limit + 1


@pytest.mark.parametrize("code", [-1, 0x10000])
def test_a_code_too_long_is_refused(code):
    with pytest.raises(ValueError, match="is not a code of fp16, which has 16 bits"):
        decode(code, get_format("fp16"))


def test_negative_zero_keeps_its_sign():
    bf16 = get_format("bf16")
    assert encode(-0.0, bf16) == bf16.sign_code
    assert math.copysign(1, round_to(-1e-50, bf16)) == -1
