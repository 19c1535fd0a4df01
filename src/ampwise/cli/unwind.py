"""Lets a command that runs children end them, and its folders, whatever ends it."""

import signal
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def signals_unwind() -> Generator[None]:
    """Let SIGTERM and SIGHUP, as Ctrl-C does, end the run and what it started, and leave no folder behind."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
