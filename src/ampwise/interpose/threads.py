"""Rows for new threads, which torch starts without autocast whatever their parent does."""

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept, undo_all

START = Row(
    name="threading.Thread.start",
    owner="threading:Thread",
    attribute="start",
    why="autocast is a thread's own: a forward pass in a new thread would be fp32",
    obstacle="thread_inherits",
)
RUN = Row(
    name="threading.Thread.bootstrap",
    owner="threading:Thread",
    attribute="_bootstrap_inner",
    why="what the parent handed down is taken up before the thread's first line",
    obstacle="thread_inherits",
)


def pass_to_threads(device_type: str) -> Undo:
    """Start every new thread in the autocast state of the one that starts it, until the undo is called."""
    inherited: WeakKeyDictionary[threading.Thread, tuple[bool, torch.dtype, bool]] = WeakKeyDictionary()

    def start(proceed: Callable[..., Any], thread: threading.Thread, *args: Any, **kwargs: Any) -> Any:
        inherited[thread] = (
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_cache_enabled(),
        )
        return proceed(thread, *args, **kwargs)

    def run(proceed: Callable[..., Any], thread: threading.Thread, *args: Any, **kwargs: Any) -> Any:
        enabled, dtype, cache_enabled = inherited.pop(thread, (False, None, True))
        if enabled and dtype is not None:
            torch.set_autocast_enabled(device_type, True)
            torch.set_autocast_dtype(device_type, dtype)
            torch.set_autocast_cache_enabled(cache_enabled)
        return proceed(thread, *args, **kwargs)

    undos = intercept(START, start), intercept(RUN, run)
    return lambda: undo_all(undos)
