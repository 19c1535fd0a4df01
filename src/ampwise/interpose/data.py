"""Rows for the DataLoader: reading data is no place for autocast, in this process or a forked one."""

from collections.abc import Callable
from typing import Any

import torch

from ampwise.compat.data import ITERATOR, WORKER_LOOP, WORKER_MODULE
from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept, switch_off_in_worker, undo_all

NEXT_BATCH = Row(
    name="torch.utils.data.DataLoader.__next__",
    owner=ITERATOR,
    attribute="__next__",
    why="a Dataset that multiplies would get low precision, where the same loop by hand keeps data out of autocast",
    obstacle="data_in_fp32",
)
WORKER = Row(
    name="torch.utils.data.worker",
    owner=WORKER_MODULE,
    attribute=WORKER_LOOP,
    why="a forked worker inherits this thread's autocast",
    obstacle="worker_in_fp32",
)


def keep_data_out(device_type: str) -> Undo:
    """Read data with autocast off until the undo is called."""

    def read(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled(device_type):
            return proceed(*args, **kwargs)
        torch.set_autocast_enabled(device_type, False)
        try:
            return proceed(*args, **kwargs)
        finally:
            torch.set_autocast_enabled(device_type, True)

    def work(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        switch_off_in_worker()
        torch.set_autocast_enabled(device_type, False)
        return proceed(*args, **kwargs)

    undos = intercept(NEXT_BATCH, read), intercept(WORKER, work)
    return lambda: undo_all(undos)
