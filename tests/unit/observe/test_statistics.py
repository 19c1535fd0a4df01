"""Statistics on the device are those of the numbers, one at a time."""

import math
from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from ampwise.observe.statistics import amax, largest, magnitude_counts, magnitude_counts_of_each, sample
from ampwise.records.numerics import INF_BIN, NUM_BINS, MagnitudeHistogram, bin_of

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NUMBERS = st.lists(st.floats() | st.floats(width=16) | st.floats(-1e-37, 1e-37), max_size=20)


def expected_counts(numbers, lowest=0.0):
    """The specification: each number on its own; below ``lowest`` it is in the first bin."""
    finite = [abs(one) for one in numbers if one and math.isfinite(one)]
    counts = Counter(bin_of(one) if one >= lowest else 0 for one in finite)
    counts[INF_BIN] += sum(map(math.isinf, numbers))
    counts[INF_BIN + 1] += sum(map(math.isnan, numbers))
    counts[NUM_BINS] += sum(one == 0 for one in numbers)
    return [counts[place] for place in range(NUM_BINS + 1)]


def nan_together(counts):
    """NaN has several codes, which lie in several bins."""
    num_nan, rest = sum(counts[INF_BIN + 1 : NUM_BINS]), [0] * (NUM_BINS - INF_BIN - 2)
    return [*counts[: INF_BIN + 1], num_nan, *rest, counts[NUM_BINS]]


@pytest.mark.parametrize("dtype", DTYPES)
@given(numbers=NUMBERS)
def test_every_number_is_counted_in_its_bin(dtype, numbers):
    tensor = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    assert nan_together(magnitude_counts(tensor).tolist()) == expected_counts(
        tensor.double().tolist(), lowest=2.0**-126 if dtype is torch.float64 else 0.0
    )


@pytest.mark.parametrize("dtype", DTYPES)
@given(numbers=NUMBERS)
def test_the_largest_magnitude_shows_what_is_not_finite(dtype, numbers):
    tensor = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    found, held = amax(tensor), [abs(one) for one in tensor.tolist()]
    assert found.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    if any(map(math.isnan, held)):
        assert found.isnan()
    else:
        assert found.item() == max(held, default=0.0)


@pytest.mark.parametrize(("dtype", "quiet"), [(torch.float16, 0x200), (torch.bfloat16, 0x40)])
def test_every_code_of_a_16_bit_format_is_counted_right(dtype, quiet):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[~every.isnan() | (every.view(torch.int16) & quiet != 0)]
    histogram = MagnitudeHistogram.from_counts(magnitude_counts(every).tolist())
    numbers = every.double()
    assert histogram.num_nan == int(numbers.isnan().sum())
    assert (histogram.num_infinite, histogram.num_zeros) == (2, 2)
    assert histogram.num_elements == len(every) > 64_000
    expected = Counter(bin_of(abs(one)) for one in numbers.tolist() if one and math.isfinite(one))
    assert dict(histogram.bins()) == expected


def test_other_kinds_of_tensors_are_counted_by_their_parts():
    parts = torch.tensor([[3.0, -4.0], [0.0, math.inf]])
    signed = torch.view_as_complex(parts).conj().imag  # -4 with its sign yet to be taken
    assert amax(torch.view_as_complex(parts).conj()).item() == math.inf
    assert amax(signed[:1]).item() == 4.0
    assert magnitude_counts(torch.view_as_complex(parts)).tolist() == magnitude_counts(parts).tolist()
    assert magnitude_counts(signed).sum() == 2
    assert amax(torch.tensor([448.0, -2.0]).to(torch.float8_e4m3fn)).item() == 448.0
    assert magnitude_counts(parts.t()).tolist() == magnitude_counts(parts).tolist()
    assert amax(torch.empty(0, 3)).item() == 0.0


def test_the_largest_of_several_tensors_is_that_of_all_their_numbers():
    tensors = [torch.tensor([1.0, -3.0]), torch.tensor([2.0]).half(), torch.empty(0)]
    assert largest(tensors).item() == 3.0
    assert largest(tensors).dtype is torch.float32
    assert largest([*tensors, torch.tensor([5.0], dtype=torch.float64)]).dtype is torch.float64
    assert largest([*tensors, torch.tensor([math.nan])]).isnan()


def test_a_sample_is_spread_over_the_tensor_and_shares_its_memory():
    tensor = torch.arange(10_000.0).reshape(100, 100)
    taken = sample(tensor, limit=100)
    assert taken.tolist() == list(range(0, 10_000, 100))
    assert taken.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert sample(tensor, limit=99).numel() <= 99
    assert sample(torch.ones(2, 2)).tolist() == [1.0] * 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_read_off_the_device_and_nothing_is_changed(dtype):
    tensor = torch.ones(3, 3, dtype=dtype, device="meta", requires_grad=True)
    assert magnitude_counts(tensor).shape == (NUM_BINS + 1,)
    assert amax(tensor).shape == largest([tensor, tensor]).shape == ()
    assert not sample(tensor).requires_grad


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_counts_as_the_cpu_does_and_waits_for_nothing(dtype):
    numbers = torch.randn(100_000, dtype=torch.float64).exp2().to(dtype)
    there = numbers.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        counts, top = magnitude_counts(there), largest([there, there])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert counts.tolist() == magnitude_counts(numbers).tolist()
    assert top.item() == amax(numbers).item()


def test_many_are_counted_as_each_alone():
    each = [
        torch.tensor([0.0, -0.0, math.inf, math.nan, 3.0]),
        torch.randn(40, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
        torch.zeros(0),
        torch.tensor(6e-8, dtype=torch.float16),
    ]
    together = magnitude_counts_of_each(each)
    for tensor, counts in zip(each, together, strict=True):
        assert torch.equal(counts, magnitude_counts(tensor))
