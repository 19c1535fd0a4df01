"""What is alive in the process, of some classes."""

import gc
from collections.abc import Iterator
from typing import Any


def live_objects(*kinds: type[Any]) -> Iterator[Any]:
    """Every object of the classes ``kinds`` that Python's garbage collector follows.

    Asks the class, not the object: a lazy object of the script's is not woken.
    """
    wanted: dict[type[Any], bool] = {}
    for candidate in gc.get_objects():
        kind = type(candidate)
        is_wanted = wanted.get(kind)
        if is_wanted is None:
            is_wanted = wanted[kind] = issubclass(kind, kinds)
        if is_wanted:
            yield candidate
