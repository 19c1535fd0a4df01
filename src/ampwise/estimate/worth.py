"""Which changes are worth a line of their own."""

from collections.abc import Iterable
from typing import Final

from ampwise.records.estimate import Remedy

_LEAST_PERCENT: Final = 1
"""Of what is needed as it is."""


def worth_a_line(remedies: Iterable[Remedy], needed_bytes: int) -> tuple[Remedy, ...]:
    """Those that save a hundredth or more of ``needed_bytes``, the largest saving first."""
    worth = [one for one in remedies if one.saved_bytes * 100 >= needed_bytes * _LEAST_PERCENT]
    return tuple(sorted(worth, key=lambda one: -one.saved_bytes))
