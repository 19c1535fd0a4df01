"""Keeps autocast's casts of the weights over a window of accumulation: its forward passes all see the same weights."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ampwise.compat.autocast_cache import (
    Versions,
    enter_level,
    has_cacheable_weights,
    leave_level,
    num_levels,
    versions_of,
)
from ampwise.compat.autograd import run_when_ready, weight_casts
from ampwise.compat.dispatch import is_watched


class CastHold:
    """Stops autocast from clearing its cache between the forward passes of one window.

    Law: gradients are what they are without it, bit for bit. A weight that was written to or replaced since its cast
    is cast anew, and so is all that runs under autocast outside of ``forward_pass``: there the cache is off. Writes
    through ``param.data`` between two forward passes of a window are not seen. Autocast's cache does not know dtypes: a
    weight cast in a nested region of another low precision meets torch's dtype error in the next forward pass too.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = params
        self._versions: Versions = []
        self._nodes: list[Any] | None = None
        self._thread: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether there may be casts from an earlier forward pass."""
        return self._thread is not None

    @contextmanager
    def forward_pass(self) -> Generator[None]:
        """Around the autocast region of a forward pass that gradients are taken of."""
        if not self._may_hold():
            yield
            return
        versions = versions_of(self._params)
        if self.is_held:
            torch.set_autocast_cache_enabled(True)
        else:
            enter_level()
            self._thread, self._versions = threading.get_ident(), versions
        if versions != self._versions:
            torch.clear_autocast_cache()
            self._nodes, self._versions = None, versions
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(False)

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """A backward pass from ``roots`` is about to run, through casts that may be of an earlier forward pass."""
        if self._thread != threading.get_ident():
            return
        if self._nodes is None:
            self._nodes = weight_casts(roots)
        elif not is_watched():  # who watches operators knows them by when they were made
            run_when_ready(self._nodes, roots)

    def drop(self) -> None:
        """Let autocast clear its cache: the window has ended."""
        thread, self._thread = self._thread, None
        self._nodes = None
        if thread == threading.get_ident():  # the count of regions is each thread's own
            torch.set_autocast_cache_enabled(True)
            leave_level()

    def _may_hold(self) -> bool:
        """Not without gradients, nor where somebody else's region or choice decides about the cache."""
        if not torch.is_grad_enabled():
            return False
        if self.is_held:
            return self._thread == threading.get_ident() and num_levels() == 1
        return torch.is_autocast_cache_enabled() and num_levels() == 0 and has_cacheable_weights(self._params)
