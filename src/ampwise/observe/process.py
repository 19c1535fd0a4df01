"""Says which process this is, without asking the kernel."""

import os
from functools import cache


def process_id() -> int:
    """``os.getpid()``, cheaply enough to ask at every operator; right in a forked child too."""
    return _known().number


class _Known:
    """The number of the process, asked again in each forked child."""

    def __init__(self) -> None:
        self.ask()

    def ask(self) -> None:
        self.number = os.getpid()


@cache
def _known() -> _Known:
    known = _Known()
    if hasattr(os, "register_at_fork"):  # Windows has none, and forks nothing
        os.register_at_fork(after_in_child=known.ask)
    return known
