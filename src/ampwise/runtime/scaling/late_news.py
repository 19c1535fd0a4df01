"""Lets the host hear how many steps in a row a device has skipped: some steps late, and without ever waiting for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

_INTERVAL: Final = 16
"""Steps from one copy to the next; news is at most about twice as old."""


class Letter(Protocol):
    """A number on its way to the host."""

    def read(self) -> int | None:
        """The number; None while it is on its way."""
        ...


@dataclass(frozen=True, slots=True)
class _CudaLetter:
    """A copy into pinned memory, with an event behind it in the stream."""

    number: Tensor
    arrived: torch.cuda.Event

    def read(self) -> int | None:
        return int(self.number) if self.arrived.query() else None


def send(number: Tensor) -> Letter | None:
    """Start copying a 0-dim tensor to the host; None where that cannot be done without waiting."""
    if number.device.type != "cuda":
        return None
    on_host = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
    on_host.copy_(number, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return _CudaLetter(on_host, arrived)


class LateNews:
    """Counts skipped steps in a row on the device, and tells the host from time to time.

    Law: nothing waits for the device; what ``take`` tells was true at some step before.

    Args:
        post: Starts a copy to the host.
        interval: Steps from one copy to the next.
    """

    def __init__(self, *, post: Callable[[Tensor], Letter | None] = send, interval: int = _INTERVAL) -> None:
        self._post, self._interval = post, interval
        self._count: Tensor | None = None
        self._letter: Letter | None = None
        self._num_steps = 0

    @torch.no_grad()
    def take(self, found_inf: Tensor) -> int | None:
        """Take in a step: how many were skipped in a row some steps ago, if that has just become known.

        Args:
            found_inf: 0-dim, on the device; not 0 where the step is skipped.
        """
        if self._count is None or self._count.device != found_inf.device:
            self._count, self._letter = torch.zeros((), dtype=torch.int64, device=found_inf.device), None
        self._count.add_(1).mul_(found_inf.reshape(()) != 0)
        self._num_steps += 1
        known = None if self._letter is None else self._letter.read()
        if known is not None:
            self._letter = None
        if self._letter is None and self._num_steps % self._interval == 0:
            self._letter = self._post(self._count)
        return known
