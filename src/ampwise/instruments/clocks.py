"""Clocks that mark a moment without waiting for the device."""

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments, and says later how far apart two were.

    Law: ``mark`` never waits for the device; ``ms_between`` may.
    """

    def mark(self) -> Any:
        """Note this moment."""
        ...

    def ms_between(self, start: Any, end: Any) -> float:
        """How many milliseconds lie between two marks."""
        ...


class WallClock:
    """The host's clock, for devices that compute while the host waits."""

    def mark(self) -> float:
        """Note this moment."""
        return time.perf_counter()

    def ms_between(self, start: float, end: float) -> float:
        """How many milliseconds lie between two marks."""
        return (end - start) * 1_000


class DeviceClock:
    """The device's own clock: an event in its current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.Event:
        """Note the moment at which the device has done all it was given so far."""
        event = torch.Event(device=self._device, enable_timing=True)
        event.record()
        return event

    def ms_between(self, start: torch.Event, end: torch.Event) -> float:
        """How many milliseconds lie between two marks, once the device has reached the later one."""
        end.synchronize()
        return start.elapsed_time(end)


def clock_of(device: torch.device) -> Clock:
    """Which clock tells the time of ``device``."""
    return DeviceClock(device) if device.type in {"cuda", "xpu"} else WallClock()
