"""Leaves when the machine is taken away: after a whole step, and every process after the same one."""

import logging
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist

from ampwise._base.errors import UsageError
from ampwise.compat.collectives import all_reduced
from ampwise.compat.distributed import is_running
from ampwise.runtime.hardware import host

_LAG: Final = 2
"""Steps that an accelerator may run behind the host before the host waits for it."""
_LOG = logging.getLogger("ampwise")


def watch_preemption(owner: object, save: Callable[[], object] | None, device: torch.device) -> Callable[[], None]:
    """What to call after each step: it saves and ends the process with status 0 once SIGTERM came.

    Args:
        owner: with its end the watching ends.
        save: None watches nothing.
        device: where processes that train together reduce what they were told.

    Raises:
        UsageError: it cannot be called; or not in the main thread, where alone Python hears signals.
    """
    if save is None:
        return lambda: None
    if not callable(save):
        raise UsageError(f"on_preemption= is a function that saves, called without arguments; {save!r} is none")
    # The signal's handler holds the watch for good, so the watch must not hold ``save``, which may hold the owner.
    watch = Preemption(device)
    weakref.finalize(owner, watch.close)

    def leave_if_told() -> None:
        if watch.leaves_now():
            save()
            watch.close()
            _LOG.info("SIGTERM: on_preemption is done, after a whole step; leaving with status 0")
            raise SystemExit(0)

    return leave_if_told


class Preemption:
    """Notes SIGTERM from construction to ``close``, and says after which step to leave.

    A process forked meanwhile ends at SIGTERM as it would have without.

    Law: of several processes that step equally often, all leave after the same step, whichever of them was told. For
    that they reduce one number a step; where it lies on an accelerator it is read two steps late, so that nobody waits.

    Args:
        device: where processes reduce that number.

    Raises:
        UsageError: not in the main thread, where alone Python hears signals.
    """

    def __init__(self, device: torch.device) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("on_preemption= needs the main thread: Python hears signals nowhere else")
        self._device, self._process = device, os.getpid()
        self._came = self._is_closed = False
        self._underway: deque[Tensor] = deque()
        self._before: Any = signal.signal(signal.SIGTERM, self._note)

    def close(self) -> None:
        """Give the signal back to who had it before, unless somebody took it since.

        In another thread than the main one that is done when the signal comes.
        """
        self._is_closed = True
        is_ours = getattr(signal.getsignal(signal.SIGTERM), "__self__", None) is self
        if is_ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    def leaves_now(self) -> bool:
        """Whether to leave, asked by every process once after each step."""
        if not is_running():
            return self._came
        told = torch.tensor(self._came, dtype=torch.int32).to(self._device, non_blocking=True)
        told = all_reduced(told, dist.ReduceOp.MAX)
        self._underway.append(told)
        if len(self._underway) <= (0 if host.reads_freely(told) else _LAG):
            return False
        return bool(self._underway.popleft())

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        # A forked child trains nothing here: whoever terminates it, as a pool its workers, waits for its end.
        if self._is_closed or os.getpid() != self._process:
            self.close()
            signal.raise_signal(number)
            return
        # A launcher that forwards the signal and a terminal that sends it to the whole group tell it twice.
        self._came = True
