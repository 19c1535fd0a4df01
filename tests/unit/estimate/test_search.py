import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwise import CannotRunError, UsageError
from ampwise.estimate.search import largest_batch, value_of_option, with_option
from ampwise.records.estimate import Estimate
from ampwise.runner.script import Target

MIB = 2**20


def made(size, capacity, **fields):
    return Estimate(
        precision="bf16", allocated_bytes=size, reserved_bytes=size, categories=(), capacity_bytes=capacity, **fields
    )


class Model:
    def __init__(self, size_of, capacity):
        self.size_of, self.capacity, self.asked = size_of, capacity, []

    def __call__(self, batch):
        self.asked.append(batch)
        return made(self.size_of(batch), self.capacity)


@given(
    fixed=st.integers(0, 10**10),
    slope=st.integers(10**6, 10**8),
    capacity=st.integers(10**9, 10**11),
    start=st.integers(1, 512),
    noise=st.integers(0, 30),
)
def test_it_finds_the_largest_one_in_a_few_predictions(fixed, slope, capacity, start, noise):
    def size_of(batch):
        segments = -(-(fixed + slope * batch) // (20 * MIB)) * 20 * MIB
        return segments + noise * 2 * MIB * (batch > 7)

    model = Model(size_of, capacity)
    found = largest_batch(model, start=start)
    if found is None:
        assert size_of(1) > capacity
    else:
        assert size_of(found.batch_size) <= capacity < size_of(found.batch_size + 1)
    assert len(model.asked) == len(set(model.asked)) <= 24


def test_a_line_is_found_in_five():
    model = Model(lambda batch: 10**9 + batch * 10**7, 16 * 10**9)
    assert largest_batch(model, start=8).batch_size == 1500
    assert len(model.asked) <= 5


def test_segments_make_few_predictions_more():
    model = Model(lambda batch: -(-(10**9 + batch * 10**7) // (20 * MIB)) * 20 * MIB, 16 * 10**9)
    largest_batch(model, start=8)
    assert len(model.asked) <= 8


def test_memory_that_shrinks_at_first_is_no_trap():
    """A workspace or a segment that a smaller batch happens to need: the line through both would fall."""
    model = Model(lambda batch: 62 * MIB + (2 * MIB if batch == 128 else max(0, batch - 900) * 30_000), 72 * MIB)
    found = largest_batch(model, start=8)
    assert model.size_of(found.batch_size) <= model.capacity < model.size_of(found.batch_size + 1)
    assert len(model.asked) <= 24


def test_memory_that_does_not_grow_is_said_to_be_so():
    with pytest.raises(CannotRunError, match="does not grow"):
        largest_batch(Model(lambda _: 5, 10))


def test_a_run_that_ended_early_ends_the_search():
    with pytest.raises(CannotRunError, match="with a batch of 4: it stopped"):
        largest_batch(lambda _: made(1, 2, is_lower_bound=True, assumptions=("it stopped",)), start=4)


@pytest.mark.parametrize(
    ("given_argv", "expected"),
    [
        ((), ("--batch", "9")),
        (("--lr", "1"), ("--lr", "1", "--batch", "9")),
        (("--batch", "4", "--lr", "1"), ("--batch", "9", "--lr", "1")),
        (("--batch=4", "x"), ("--batch=9", "x")),
    ],
)
def test_the_scripts_own_option_is_set(given_argv, expected):
    assert with_option(Target(path="t.py", argv=given_argv), "--batch", 9).argv == expected


def test_the_search_begins_where_the_script_would():
    assert value_of_option(("--batch", "4"), "--batch") == 4
    assert value_of_option(("--batch=64",), "--batch") == 64
    assert value_of_option(("--lr", "4"), "--batch") is None
    for wrong in (("--batch", "auto"), ("--batch=0",), ("--batch=-3",)):
        with pytest.raises(UsageError, match="no batch size"):
            value_of_option(wrong, "--batch")
