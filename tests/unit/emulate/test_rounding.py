"""Every code of every format, its neighbours and the points between them, against the scalar specification."""

import math
import random
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from ampwise._base.errors import UsageError
from ampwise.emulate.rounding import round_to
from ampwise.formats.scalar import decode
from ampwise.formats.scalar import round_to as specification
from ampwise.formats.spec import FloatFormat, Specials
from ampwise.formats.table import FORMATS

SMALL = [row for row in FORMATS.values() if row.num_bits <= 16]
ROUNDED = [*SMALL, FORMATS["tf32"]]
OWN = FloatFormat(
    name="e3m4", title="a user's own", exponent_bits=3, mantissa_bits=4, bias=3, specials=Specials.IEEE, storage_bits=8
)
NATIVE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8_e5m2": torch.float8_e5m2}
ML = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}


def codes(format_):
    """All codes of up to 16 bits; of more, a sample and the ends."""
    if format_.num_bits <= 16:
        return range(2 * format_.sign_code)
    ends = [*range(64), *range(format_.max_code - 64, format_.inf_code + 2)]
    return [*ends, *random.Random(0).choices(range(2 * format_.sign_code), k=4000)]


def points(format_):
    """Numbers of the format, points between them and their neighbours, and the ends of the range; a sample of 2000."""
    numbers = [number for code in codes(format_) if math.isfinite(number := decode(code, format_))]
    found = [number + part * format_.ulp(number) for number in numbers for part in (0.0, 0.25, 0.4999, 0.5, 0.5001)]
    limit = float(format_.overflow_threshold)
    ends = (limit, limit * (1 + 2**-23), limit * (1 - 2**-23), 1e38, math.inf, 0.0)
    return [*random.Random(0).sample(found, k=min(len(found), 2000)), *ends, *(-end for end in ends), math.nan]


def same(one, other):
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other and math.copysign(1, one) == math.copysign(1, other)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("format_", [*ROUNDED, OWN], ids=lambda row: row.name)
def test_nearest_is_the_specifications(format_, dtype, saturate):
    given = torch.tensor(points(format_), dtype=dtype)
    rounded = round_to(given, format_, saturate=saturate)
    assert rounded.dtype is dtype
    wrong = [
        (x, y)
        for x, y in zip(given.double().tolist(), rounded.double().tolist(), strict=True)
        if not same(y, specification(x, format_, saturate=saturate))
    ]
    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("format_", [*SMALL, OWN], ids=lambda row: row.name)
def test_every_code_and_every_point_between_two(format_, dtype):
    """Codes of ascending magnitudes ascend by one, so a number's upper neighbour is the next code's."""
    numbers = torch.tensor([decode(code, format_) for code in range(format_.max_code + 1)], dtype=dtype)
    lower, upper = numbers[:-1], numbers[1:]
    even = torch.where(torch.arange(len(lower)) % 2 == 0, lower, upper)
    for sign in (1, -1):
        assert torch.equal(round_to(sign * numbers, format_), sign * numbers)
        assert torch.equal(round_to(sign * (lower + (upper - lower) * 0.5), format_), sign * even)
        assert torch.equal(round_to(sign * (lower + (upper - lower) * 0.4375), format_), sign * lower)
        assert torch.equal(round_to(sign * (lower + (upper - lower) * 0.5625), format_), sign * upper)


@pytest.mark.parametrize("name", ML)
def test_nearest_is_ml_dtypes(name):
    given = torch.cat([torch.randn(20_000) * 2.0**scale for scale in (-30, -20, -10, 0, 7, 14)])
    with np.errstate(over="ignore"):
        expected = given.numpy().astype(ML[name]).astype(np.float32)
    assert np.array_equal(round_to(given, name).numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("name", NATIVE)
def test_nearest_is_torchs_cast(name):
    given = torch.randn(20_000) * 2.0 ** torch.randint(-30, 18, (20_000,))
    assert torch.equal(round_to(given, name), given.to(NATIVE[name]).float())


def test_fp8_e4m3_has_nan_where_torchs_cast_on_a_cpu_has_448():
    given = torch.tensor([448.0, 464.0, 464.1, 1e9, math.inf, -math.inf])
    assert given.to(torch.float8_e4m3fn).float().tolist() == [448.0] * 5 + [-448.0]
    assert round_to(given, "fp8_e4m3")[:2].tolist() == [448.0, 448.0]
    assert round_to(given, "fp8_e4m3")[2:].isnan().all()
    assert round_to(given, "fp8", saturate=True)[:4].tolist() == [448.0] * 4
    assert round_to(given, "fp8", saturate=True)[4:].isnan().all()


@pytest.mark.parametrize("format_", [*ROUNDED, OWN], ids=lambda row: row.name)
def test_stochastic_rounding_leaves_the_formats_numbers_alone(format_):
    given = torch.tensor([decode(code, format_) for code in codes(format_)])
    rounded = round_to(given, format_, mode="stochastic", generator=torch.Generator().manual_seed(0))
    assert torch.equal(rounded.nan_to_num(), given.nan_to_num())
    assert torch.equal(rounded.isnan(), given.isnan())
    assert torch.equal(rounded.signbit(), given.signbit())


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("part", [0.5, 0.125, 0.9])
@pytest.mark.parametrize("place", ["normal", "subnormal", "negative"])
def test_stochastic_rounding_takes_the_upper_with_the_distances_probability(name, part, place):
    format_, num = FORMATS[name], 40_000
    lower = {"normal": 1.0, "subnormal": format_.smallest_subnormal, "negative": -1.0 - format_.eps}[place]
    step = format_.ulp(lower) if place != "negative" else format_.eps
    given = torch.full((num,), lower + part * step, dtype=torch.float32)
    true = (Fraction(given[0].item()) - Fraction(lower)) / Fraction(step)  # after its own rounding to fp32
    rounded = round_to(given, name, mode="stochastic", generator=torch.Generator().manual_seed(1))
    assert set(rounded.tolist()) == {lower, lower + step}
    up = (rounded > lower).double().mean().item()
    # Hoeffding: P(|mean - p| > t) <= 2 exp(-2 n t^2), here below 1e-9; and 2^-24 from the random number's own steps
    bound = math.sqrt(math.log(2e9) / (2 * num)) + 2.0**-24
    assert abs(up - float(true)) < bound


def test_stochastic_rounding_beyond_the_range_does_what_nearest_does():
    given = torch.tensor([65519.0, 65520.0, -1e6, math.inf, math.nan]).repeat(1000)
    rounded = round_to(given, "fp16", mode="stochastic")
    assert torch.equal(rounded.nan_to_num(1.0), round_to(given, "fp16").nan_to_num(1.0))


def test_a_generator_makes_it_repeatable():
    given = torch.randn(100)
    one, other = (
        round_to(given, "fp8", mode="stochastic", generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_the_gradient_passes_straight_through(mode):
    x = torch.tensor([0.1, 1e-9, 1e6], requires_grad=True)
    (round_to(x, "fp16", mode=mode) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_narrow_tensor_is_rounded_to_a_narrower_format_and_keeps_its_dtype(dtype):
    x = torch.randn(100, dtype=dtype)
    rounded = round_to(x, "fp8_e5m2") if dtype is torch.float16 else round_to(x, "fp8")
    assert rounded.dtype is dtype
    assert torch.equal(rounded.float(), round_to(x.float(), "fp8_e5m2" if dtype is torch.float16 else "fp8"))
    assert torch.equal(round_to(x, "fp32"), x)


def test_the_tensor_itself_is_never_returned_or_changed():
    x = torch.randn(10)
    before = x.clone()
    for name in FORMATS:
        assert round_to(x, name).data_ptr() != x.data_ptr()
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (3, 4)])
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", ["tf32", "fp16", "fp8"])
def test_any_shape_and_layout(name, mode, shape):
    x = torch.randn(shape)
    assert round_to(x, name, mode=mode).shape == shape
    if len(shape) == 2:
        assert torch.equal(round_to(x.t(), name).t(), round_to(x, name))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: round_to(torch.ones(1), "fp17"), '"fp17" is not a format; did you mean "fp16"'),
        (lambda: round_to(torch.ones(1), "fp16", mode="nearst"), 'did you mean "nearest"'),
        (lambda: round_to(torch.ones(1, dtype=torch.int32), "fp16"), "a tensor of int32 has no floating-point"),
        (lambda: round_to(torch.ones(1).half(), "bf16"), "a float16 tensor cannot hold every bf16 number"),
        (lambda: round_to(torch.ones(1).bfloat16(), "fp16"), "a bfloat16 tensor cannot hold every fp16 number"),
        (lambda: round_to(torch.ones(1), "fp16", generator=torch.Generator()), "draws no random numbers"),
    ],
)
def test_bad_input(call, text):
    with pytest.raises(UsageError, match=text):
        call()


def test_a_nan_of_all_ones_stays_one():
    given = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    for name in ("tf32", "bf16", "fp16", "fp8"):
        assert round_to(given, name).isnan().all()
