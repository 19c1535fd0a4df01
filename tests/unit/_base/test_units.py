import pytest

from ampwise._base.errors import UsageError
from ampwise._base.units import format_bytes, format_count, format_ms, format_ratio, parse_bytes, parse_count


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("24GB", 24 * 10**9), ("2 GiB", 2 * 2**30), ("4096", 4096), ("0.5kb", 500), (".5 MiB", 2**19)],
)
def test_sizes_are_read_with_decimal_and_binary_units_apart(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "24 gigs", "-1GB", "1e9", "24GB!"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="24GB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**30 * 1.94, "1.94 GiB"),
        (2**50, "1024 TiB"),
        (1.5e8, "143 MiB"),
    ],
)
def test_sizes_are_written_with_three_digits(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0.418, "0.42 ms"),
        (81.34, "81.3 ms"),
        (999.4, "999 ms"),
        (2_100, "2.10 s"),
        (150_000, "2.50 min"),
        (8.6e7, "23.9 h"),
    ],
)
def test_times_are_written_in_the_unit_that_fits(time_ms, text):
    assert format_ms(time_ms) == text


def test_ratios_carry_their_sign():
    assert format_ratio(2.306) == "2.31x"


@pytest.mark.parametrize(
    ("text", "count"),
    [("7e9", 7_000_000_000), ("7B", 7_000_000_000), ("1.3e8", 130_000_000), ("130M", 130_000_000), ("4_096", 4096)],
)
def test_counts_are_read_as_users_write_them(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "7.5", "-3", "7 bn", "1e99", "nan", "7e9e9", "1e30"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(UsageError, match="is not a count"):
        parse_count(text)


@pytest.mark.parametrize(("count", "text"), [(7_000_000_000, "7.00 B"), (130_000_000, "130 M"), (4096, "4096")])
def test_counts_are_shown_with_three_digits(count, text):
    assert format_count(count) == text
