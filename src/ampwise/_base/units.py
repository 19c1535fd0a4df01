"""Reads and writes sizes, times and counts. GB is 10^9 bytes, GiB is 2^30."""

import re
from decimal import Decimal

from ampwise._base.errors import UsageError

MS_PER_HOUR = 3.6e6
_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_COUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE]\+?[0-9]{1,2})?)\s*([kKmMbBgGtT]?)\s*")
_MOST = Decimal(10) ** 18
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """How many bytes ``"24GB"``, ``"2 GiB"`` or ``"4096"`` are.

    Raises:
        UsageError: the text is not a number with one of the known units.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get((match[2] or "b").lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f'"{text}" is not a size; write a number and one of B, KB, MB, GB, KiB, MiB, GiB, as in 24GB')
    return round(float(match[1]) * unit)


def parse_count(text: str) -> int:
    """How many ``"7e9"``, ``"7B"``, ``"130M"`` or ``"4096"`` are; B is a billion.

    Raises:
        UsageError: the text is not a whole number of something.
    """
    match = _COUNT.fullmatch(text.replace("_", ""))
    count = Decimal(match[1]) * _COUNTS[match[2].lower()] if match else Decimal("0.5")
    if count != count.to_integral_value() or count > _MOST:
        raise UsageError(f'"{text}" is not a count; write it as 7e9, 7B, 130M or 4096')
    return int(count)


def format_count(count: int) -> str:
    """A count in the unit that keeps it readable: ``7.00 B``, ``130 M``, ``4096``."""
    for divisor, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= divisor:
            return f"{count / divisor:.{_decimals(count / divisor)}f} {unit}"
    return str(count)


def format_bytes(num_bytes: float) -> str:
    """A size in the binary unit that keeps it readable: ``1.94 GiB``."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.{_decimals(size)}f} {unit}"
        size /= 1024
    return f"{size:.{_decimals(size)}f} TiB"


def format_ms(time_ms: float) -> str:
    """A time in the unit that keeps it readable: ``0.42 ms``, ``81.3 ms``, ``2.10 s``, ``23.9 h``."""
    if time_ms < 1_000:
        return f"{time_ms:.{_decimals(time_ms)}f} ms"
    seconds = time_ms / 1_000
    for limit, divisor, unit in ((120, 1, "s"), (7_200, 60, "min")):
        if seconds < limit:
            return f"{seconds / divisor:.{_decimals(seconds / divisor)}f} {unit}"
    return f"{seconds / 3_600:.{_decimals(seconds / 3_600)}f} h"


def format_ratio(ratio: float) -> str:
    """How many times as much: ``2.31x``."""
    return f"{ratio:.2f}x"


def _decimals(value: float) -> int:
    """Three significant digits, at most two of them behind the point."""
    return 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
