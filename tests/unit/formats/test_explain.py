import math
from fractions import Fraction

import pytest

from ampwise._base.errors import UsageError
from ampwise.formats import get_format
from ampwise.formats.explain import Outcome, explain_format, explain_number, outcome_of, parse_number

FP16, E4M3 = get_format("fp16"), get_format("fp8_e4m3")


def _facts(text):
    return explain_number(parse_number(text), given=text)


def _image(text, name):
    return next(image for image in _facts(text).images if image.format == name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-8", Fraction(1, 10**8)),
        ("-3e5", Fraction(-300_000)),
        ("1.0005", Fraction(10005, 10_000)),
        ("2^-24", Fraction(1, 2**24)),
        ("-2**3", Fraction(-8)),
        ("1/3", Fraction(1, 3)),
        (" 65520 ", Fraction(65520)),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
    ],
)
def test_numbers_are_read_exactly(text, expected):
    assert parse_number(text) == expected


@pytest.mark.parametrize("text", ["fp16", "", "1e", "0x10", "1/0", "0^-1", "--5", "e5", "1..2", "train.py"])
def test_what_is_no_number_is_none(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(("text", "sign"), [("0", 1), ("-0.0", -1), ("0/7", 1), ("0e5", 1), ("0^5", 1)])
def test_zero_keeps_its_sign(text, sign):
    value = parse_number(text)
    assert value == 0
    assert math.copysign(1, value) == sign


def test_nan_is_a_number_here():
    assert math.isnan(parse_number("NaN"))


@pytest.mark.parametrize("text", ["1e99999", "1e-5001", "2^9999999999", "1e999999999999999999999999"])
def test_what_lies_far_beyond_every_format_is_refused_at_once(text):
    with pytest.raises(UsageError, match="far beyond every format"):
        parse_number(text)


@pytest.mark.parametrize(
    ("text", "outcome", "becomes"),
    [
        ("65504", Outcome.EXACT, 65504),
        ("65519.9", Outcome.ROUNDED, 65504),
        ("65520", Outcome.OVERFLOW, math.inf),
        ("-65520", Outcome.OVERFLOW, -math.inf),
        ("6.2e-5", Outcome.ROUNDED, 6.198883056640625e-05),
        ("6.0e-5", Outcome.SUBNORMAL, 6.0021877288818359375e-05),
        ("2^-24", Outcome.SUBNORMAL, 2**-24),
        ("3.0e-8", Outcome.SUBNORMAL, 2**-24),
        ("2^-25", Outcome.ZERO, 0),
        ("1e-8", Outcome.ZERO, 0),
        ("1.0005", Outcome.ROUNDED, 1.0009765625),
        ("0", Outcome.EXACT, 0),
        ("inf", Outcome.EXACT, math.inf),
    ],
)
def test_what_becomes_of_a_number_in_fp16(text, outcome, becomes):
    image = _image(text, "fp16")
    assert (image.outcome, image.becomes) == (outcome, becomes)


def test_what_rounds_up_to_the_smallest_normal_number_is_no_subnormal():
    assert outcome_of(Fraction(2**-14) * (1 - Fraction(1, 2**20)), FP16) is Outcome.ROUNDED


def test_infinity_and_overflow_are_nan_in_e4m3():
    assert outcome_of(math.inf, E4M3) is Outcome.OVERFLOW
    assert outcome_of(math.nan, E4M3) is Outcome.EXACT
    assert math.isnan(_image("500", "fp8_e4m3").becomes)


def test_the_relative_error():
    assert _image("1.0005", "fp16").relative_error == pytest.approx(0.0004765625 / 1.0005)
    assert _image("1e-8", "fp16").relative_error == 1
    assert _image("65520", "fp16").relative_error is None
    assert _image("65520", "fp32").relative_error == 0
    assert _image("0", "fp16").relative_error is None


def test_one_plus_the_number():
    assert _image("0.0005", "fp16").one_plus == 1.0009765625
    assert _image("0.0005", "bf16").one_plus == 1
    assert _image("inf", "fp16").one_plus == math.inf


def test_the_scale_that_saves_a_gradient():
    scaling = _facts("1e-8").loss_scaling
    assert (scaling.smallest_nonzero, scaling.smallest_normal) == (4, 8192)
    outcomes = {row.scale: row.outcome for row in scaling.common}
    assert outcomes == {
        1: Outcome.ZERO,
        8: Outcome.SUBNORMAL,
        256: Outcome.SUBNORMAL,
        1024: Outcome.SUBNORMAL,
        65536: Outcome.ROUNDED,
    }


@pytest.mark.parametrize(
    ("text", "nonzero", "normal"),
    [("0.01", 1, 1), ("1e-5", 1, 8), ("70000", None, None), ("1e-60", None, None), ("-1e-8", 4, 8192)],
)
def test_scales_at_the_edges(text, nonzero, normal):
    scaling = _facts(text).loss_scaling
    assert (scaling.smallest_nonzero, scaling.smallest_normal) == (nonzero, normal)


@pytest.mark.parametrize("text", ["1e-8", "3e-12", "1e-38"])
def test_half_the_scale_that_saves_does_not(text):
    value, scaling = parse_number(text), _facts(text).loss_scaling
    assert outcome_of(value * scaling.smallest_nonzero, FP16) is not Outcome.ZERO
    assert outcome_of(value * scaling.smallest_nonzero / 2, FP16) is Outcome.ZERO
    assert outcome_of(value * scaling.smallest_normal / 2, FP16) in {Outcome.SUBNORMAL, Outcome.ZERO}


@pytest.mark.parametrize("text", ["0", "inf", "nan"])
def test_no_scale_is_asked_for_what_no_scale_changes(text):
    assert _facts(text).loss_scaling is None


def test_the_facts_of_fp16():
    facts = explain_format(FP16)
    assert (facts.max, facts.overflow_threshold, facts.overflows_to) == (65504, 65520, math.inf)
    assert (facts.smallest_normal, facts.underflow_threshold) == (2**-14, 2**-25)
    assert facts.one_plus_half_thousandth == 1.0009765625
    assert "t4" in facts.gpus
    assert "gtx-1660" not in facts.gpus
    assert facts.least_compute_capability == (7, 0)
    assert "avx512_fp16" in facts.cpu_flags


def test_fp64_has_no_thresholds_that_a_float_could_say():
    facts = explain_format(get_format("fp64"))
    assert facts.overflow_threshold is None
    assert facts.underflow_threshold is None
    assert facts.least_compute_capability is None
