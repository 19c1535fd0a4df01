import math

import pytest

from ampwise.compare.losses import block_means, curves, final_loss, first_curve, is_finite
from ampwise.records.run import StepRecord


def test_curves_are_taken_apart_by_optimizer(run_of):
    steps = tuple(
        StepRecord(index=i, optimizer=i % 3, loss=None if i % 3 == 0 else float(i), time_ms=None) for i in range(6)
    )
    run = run_of(steps=steps)
    assert curves(run) == {1: (1.0, 4.0), 2: (2.0, 5.0)}
    assert first_curve(run) == (1.0, 4.0)
    assert first_curve(run_of()) == ()


@pytest.mark.parametrize(
    ("curve", "final"),
    [((), None), ((1.0, 3.0), 2.0), ((9.0, 1.0, 2.0, 3.0, 4.0, 5.0), 3.0), (tuple(map(float, range(100))), 94.5)],
)
def test_the_final_loss_is_the_mean_of_a_tenth_of_at_least_five(curve, final):
    assert final_loss(curve) == final


def test_blocks_cover_every_value_once():
    values = [float(i) for i in range(10)]
    assert block_means(values, num_blocks=2) == [2.0, 7.0]
    assert block_means(values, num_blocks=10) == values
    assert sum(block_means([1.0] * 13, num_blocks=8)) == 8.0


def test_finite_means_that_squares_are():
    assert is_finite(-1e149)
    assert not any(map(is_finite, (math.nan, math.inf, -math.inf, 1e200)))
