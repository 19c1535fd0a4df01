import math

import pytest

from ampwise.records.outputs import OutputDistance, OutputRecord, OutputSample, distance

NAN, INF = math.nan, math.inf


def record(*rows, decisions=()):
    return OutputRecord(
        samples=tuple(OutputSample(shape=(len(row),), numbers=row, decisions=decisions) for row in rows)
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "error"),
    [
        ((3.0, 4.0), (3.0, 4.0), 0.0),
        ((3.0, 4.5), (3.0, 4.0), 0.1),
        ((1.0,), (0.0,), INF),
        ((0.0,), (0.0,), 0.0),
        ((INF, 1.0), (2.0, 1.0), INF),
        ((NAN, 1.0), (2.0, 1.0), INF),
        ((NAN, 1.0), (NAN, 1.0), 0.0),
        ((5.0, 1.0), (INF, 1.0), 0.0),
    ],
)
def test_the_error_is_of_the_difference_over_fp32s(ours, theirs, error):
    assert distance(record(ours), record(theirs)).relative_error == pytest.approx(error)


def test_decisions_that_moved_are_counted():
    ours, theirs = record((1.0,), (1.0,), decisions=(0, 1, 2)), record((1.0,), (1.0,), decisions=(0, 2, 2))
    seen = distance(ours, theirs)
    assert (seen.num_decisions, seen.num_flips) == (6, 2)
    assert seen.flips == pytest.approx(1 / 3)
    assert OutputDistance(relative_error=0.0, num_decisions=0, num_flips=0).flips is None


def test_passes_of_other_shapes_are_not_compared():
    assert distance(record((1.0,)), record((1.0, 2.0))) is None
    assert distance(record(), record()) is None
    assert distance(record((1.0,), (9.0,)), record((1.0,))).relative_error == 0.0
