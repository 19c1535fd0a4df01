"""A gauge takes in what modules give, whatever that is, and changes none of it."""

import math
from collections import OrderedDict

import pytest
import torch

from ampwise.runtime.casts.gauge import Gauge

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
