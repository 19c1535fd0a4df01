"""Lets compiled functions run as plain Python for a while: an operator in compiled code cannot be watched."""

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack

import torch


def has_dynamo() -> bool:
    """Whether this process has loaded TorchDynamo: without it nothing is compiled."""
    return "torch._dynamo" in sys.modules


def run_uncompiled() -> Callable[[], None]:
    """Run compiled functions in eager mode until the undo is called. Call it outside of a compiled function.

    Undos may be called in any order: functions run compiled again after the last.
    """
    _EAGER.enter()
    return _EAGER.leave


class _Eager:
    """Counts who asks for eager mode: torch's stance is one a process, and each takes back only what it found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking = 0
        self._stance = ExitStack()

    def enter(self) -> None:
        with self._lock:
            if not self._asking:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._asking += 1

    def leave(self) -> None:
        with self._lock:
            self._asking -= 1
            if not self._asking:
                self._stance.close()


_EAGER = _Eager()
