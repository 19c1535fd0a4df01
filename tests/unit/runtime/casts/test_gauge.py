"""A gauge takes in what modules give, whatever that is, and changes none of it."""

import math
from collections import OrderedDict

import pytest
import torch

from ampwise.emulate.scaled_product import quantize
from ampwise.formats.table import FORMATS
from ampwise.runtime.casts.gauge import Gauge, UnderflowGauge

CPU = torch.device("cpu")


def test_it_takes_in_every_floating_tensor():
    gauge = Gauge(4.0, CPU)
    gauge.take((torch.tensor([1.0, -5.0]), {"a": torch.tensor([4.0], dtype=torch.float16), "b": [torch.tensor([7])]}))
    assert gauge.numbers.tolist() == [5.0, 2.0, 3.0]
    gauge.take(OrderedDict(a=torch.tensor([[2.0, 3.0]]), b=None, c="text"))
    gauge.take(torch.empty(0))
    assert gauge.numbers.tolist() == [5.0, 2.0, 5.0]
    gauge.empty()
    assert gauge.numbers.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_counts_and_is_the_peak_whatever_follows(bad):
    gauge = Gauge(math.inf, CPU)
    gauge.take(torch.tensor([1.0, bad]))
    gauge.take(torch.ones(2))
    assert not math.isfinite(gauge.numbers[0])
    assert gauge.numbers[1:].tolist() == [1.0, 4.0]


def test_large_results_are_sampled_for_the_share_and_seen_whole_for_the_peak():
    gauge, values = Gauge(0.5, CPU), torch.zeros(10_000)
    values[4999] = 9.0
    gauge.take(values)
    assert gauge.numbers[0] == 9.0
    assert gauge.numbers[2] <= 4096


def test_evaluation_is_left_out_and_the_graph_is_not_touched():
    gauge, x = Gauge(1.0, CPU), torch.ones(2, requires_grad=True)
    with torch.no_grad():
        gauge.take(x * 3)
    assert gauge.numbers[2] == 0
    result = x * 3
    gauge.take(result)
    assert not gauge.numbers.requires_grad
    assert result.grad_fn.name() == "MulBackward0"


def reach(name):
    return FORMATS[name].max / (FORMATS[name].smallest_subnormal / 2)


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)], ids=["e4m3", "e5m2"]
)
def test_the_share_that_vanishes_is_what_fp8_with_one_scale_makes_zero(name, dtype):
    gauge, octaves = UnderflowGauge(reach(name), CPU), torch.arange(-60.0, 4.0, 0.25)
    values = torch.where(torch.arange(len(octaves)) % 2 == 0, 1.0, -1.0) * 2**octaves
    values[:10] = 0.0
    gauge.take({"a": (values, torch.tensor([1, 2])), "b": torch.tensor([1.0, 2.0, math.inf])})
    rounded, _ = quantize(values, dtype)
    lost = (rounded.float() == 0) & (values != 0)
    assert gauge.numbers.tolist() == [pytest.approx(int(lost.sum()) / int((values != 0).sum()))]
    assert 0.1 < gauge.numbers[0] < 0.9
    gauge.take((torch.ones(5), torch.zeros(5)))  # the largest share stays
    assert gauge.numbers[0] > 0.1
    gauge.empty()
    with torch.no_grad():
        gauge.take(values)
    assert gauge.numbers.tolist() == [0.0]
