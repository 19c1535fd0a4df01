"""Lets a command that runs children end them, and its folders, whatever ends it."""

import signal
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def signals_unwind() -> Generator[None]:
    """Let SIGTERM and SIGHUP, as Ctrl-C does, end the run and what it started, and leave no folder behind.

    Only the first counts: ``timeout`` sends two, and the second would end the removal of the folders.
    """
    is_leaving = False

    def leave(number: int, _: object) -> None:
        nonlocal is_leaving
        is_leaving = True
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        if not is_leaving:
            for number, handler in before.items():
                signal.signal(number, handler)
