"""What a histogram of magnitudes says of a format, against exact arithmetic on every number."""

import math
from collections import Counter
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ampwise.formats import FORMATS
from ampwise.formats.scalar import round_to
from ampwise.records.files import from_json, to_json
from ampwise.records.numerics import (
    INF_BIN,
    NUM_BINS,
    MagnitudeHistogram,
    bin_of,
    lower_edge,
    middle_of,
    range_verdict,
)

POSITIVE = st.floats(2.0**-149, 2.0**127, width=32) | st.floats(2.0**-30, 2.0**17, width=32)


def histogram(numbers):
    places = Counter(bin_of(one) for one in numbers)
    return MagnitudeHistogram.from_counts([places[place] for place in range(NUM_BINS)] + [0])


@given(number=POSITIVE)
def test_a_number_lies_between_its_bins_edges(number):
    assert lower_edge(bin_of(number)) <= Fraction(number) < lower_edge(bin_of(number) + 1)


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
@given(numbers=st.lists(POSITIVE, min_size=1, max_size=10), scale=st.integers(-20, 20).map(lambda k: 2.0**k))
def test_the_verdict_is_what_rounding_every_bins_middle_gives(name, numbers, scale):
    format_ = FORMATS[name]
    verdict = range_verdict(histogram(numbers), format_, scale=scale)
    rounded = [round_to(middle_of(bin_of(one)) * Fraction(scale), format_) for one in numbers]
    assert verdict.overflowing == sum(not math.isfinite(one) for one in rounded) / len(numbers)
    assert verdict.flushed == sum(one == 0 for one in rounded) / len(numbers)
    small = [middle_of(bin_of(one)) * Fraction(scale) < Fraction(format_.smallest_normal) for one in numbers]
    kept = [is_small and one != 0 for is_small, one in zip(small, rounded, strict=True)]
    assert verdict.subnormal == sum(kept) / len(numbers)


LIMITS = {"fp16": (65520.0, 65536.0), "bf16": (3.3e38, 3.5e38), "fp8_e4m3": (464.0, 480.0), "fp8_e5m2": (61440.0, 0.0)}


@pytest.mark.parametrize("name", LIMITS)
@given(number=POSITIVE, scale=st.integers(-20, 20).map(lambda k: 2.0**k))
def test_the_verdict_is_exact_but_for_the_slivers_it_names(name, number, scale):
    format_, scaled = FORMATS[name], Fraction(number) * Fraction(scale)
    low, high = LIMITS[name]
    if low <= scaled < high or scaled == format_.underflow_threshold or number < 2.0**-126:
        return
    verdict, rounded = range_verdict(histogram([number]), format_, scale=scale), round_to(scaled, format_)
    assert verdict.overflowing == (not math.isfinite(rounded))
    assert verdict.flushed == (rounded == 0)
    assert verdict.subnormal == (rounded != 0 and scaled < Fraction(format_.smallest_normal))


def test_known_gradients_vanish_without_a_scale_and_not_with_one():
    gradients = histogram([2.0**-26] * 3 + [2.0**-20])
    assert range_verdict(gradients, FORMATS["fp16"]).flushed == 0.75
    assert range_verdict(gradients, FORMATS["fp16"]).subnormal == 0.25
    assert range_verdict(gradients, FORMATS["fp16"], scale=2.0**16).subnormal == 0.0
    assert range_verdict(gradients, FORMATS["fp16"], scale=2.0**37).overflowing == 0.25


@given(one=st.lists(POSITIVE, max_size=6), other=st.lists(POSITIVE, max_size=6))
def test_two_histograms_together_are_the_histogram_of_both(one, other):
    assert histogram(one).merged(histogram(other)) == histogram([*one, *other])


def test_zeros_infinities_and_nan_are_told_apart_and_in_no_share():
    counts = [0] * (NUM_BINS + 1)
    counts[INF_BIN], counts[INF_BIN + 4], counts[NUM_BINS] = 2, 3, 5
    found = MagnitudeHistogram.from_counts(counts)
    assert (found.num_infinite, found.num_nan, found.num_zeros, found.num_nonzero) == (2, 3, 5, 0)
    assert found.merged(found).num_elements == 20
    verdict = range_verdict(found, FORMATS["fp16"])
    assert (verdict.overflowing, verdict.subnormal, verdict.flushed) == (0.0, 0.0, 0.0)


@given(numbers=st.lists(POSITIVE, max_size=6))
def test_it_survives_its_file(numbers):
    found = histogram(numbers)
    assert from_json(to_json(found), MagnitudeHistogram) == found
    assert all((*found.counts[:1], *found.counts[-1:]))
