"""Hides ampwise's own operators from every watcher."""

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager


class _Depth(threading.local):
    value = 0
    hidden = 0


_DEPTH = _Depth()


class _Internal:
    """Entered at every operator that an instrument looks at: a generator would cost three times as much."""

    def __enter__(self) -> None:
        _DEPTH.value += 1
        _DEPTH.hidden += 1

    def __exit__(self, *exc: object) -> None:
        _DEPTH.value -= 1
        _DEPTH.hidden -= 1


_INTERNAL = _Internal()


def internal() -> AbstractContextManager[None]:
    """Within it, this thread's calls pass every interceptor by, and no instrument counts its operators."""
    return _INTERNAL


class _Announced:
    """Entered twice at every step of a ``TrainStep``."""

    def __enter__(self) -> None:
        _DEPTH.hidden += 1

    def __exit__(self, *exc: object) -> None:
        _DEPTH.hidden -= 1


_ANNOUNCED = _Announced()


def announced() -> AbstractContextManager[None]:
    """Within it, this thread's calls pass every interceptor by: their caller publishes the events itself.

    They are the user's work all the same, so instruments that watch operators and memory go on watching.
    """
    return _ANNOUNCED


@contextmanager
def users_code() -> Generator[None]:
    """Within it, this thread's calls are the user's again: a closure called from our own step."""
    before = _DEPTH.value, _DEPTH.hidden
    _DEPTH.value = _DEPTH.hidden = 0
    try:
        yield
    finally:
        _DEPTH.value, _DEPTH.hidden = before


def is_internal() -> bool:
    """Whether this thread runs ampwise's own operators."""
    return _DEPTH.value > 0


def is_hidden() -> bool:
    """Whether interceptors let this thread's calls pass."""
    return _DEPTH.hidden > 0
