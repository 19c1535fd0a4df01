"""Hides ampwise's own operators from every watcher."""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class _Depth(threading.local):
    value = 0


_DEPTH = _Depth()


@contextmanager
def internal() -> Generator[None]:
    """Within it, this thread's calls pass every interceptor by."""
    _DEPTH.value += 1
    try:
        yield
    finally:
        _DEPTH.value -= 1


def is_internal() -> bool:
    """Whether this thread runs ampwise's own operators."""
    return _DEPTH.value > 0
