"""torch's profiler, and the events it recorded as plain values.

Private names: ``profile.profiler.kineto_results`` and its events, which carry dtypes; ``_profiler_enabled``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledEvent:
    """One operator, function of the driver's, or kernel, as the profiler saw it."""

    name: str
    """``aten::mm``, or a kernel's own."""
    start_ns: int
    duration_ns: int
    is_device: bool = False
    thread: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the arguments; empty for what is no tensor."""
    dtypes: tuple[str, ...] = ()
    """Of the arguments, as C++ writes them: ``float``, ``c10::BFloat16``."""
    values: tuple[Any, ...] = ()
    """The arguments that are no tensors; None in a tensor's place."""
    number: int = 0
    """An operator's number."""
    launched_by: int = 0
    """The number of the operator that launched the kernel."""

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns


class StepProfiler:
    """Records operators and kernels from ``start`` to ``stop``."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, record_shapes=True)

    def start(self) -> None:
        """Record from here on."""
        self._profile.start()

    def stop(self) -> list[ProfiledEvent]:
        """What was recorded."""
        self._profile.stop()
        results: Any = getattr(self._profile.profiler, "kineto_results", None)
        return [] if results is None else [_plain(event) for event in results.events()]


def is_profiling() -> bool:
    """Whether a profiler runs: torch allows one at a time."""
    return torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]


def _plain(event: Any) -> ProfiledEvent:
    return ProfiledEvent(
        name=event.name(),
        start_ns=event.start_ns(),
        duration_ns=event.duration_ns(),
        is_device=event.device_type() != torch.autograd.DeviceType.CPU,  # pyright: ignore[reportPrivateImportUsage]
        thread=event.start_thread_id(),
        shapes=tuple(map(tuple, event.shapes())),
        dtypes=tuple(event.dtypes()),
        values=tuple(event.concrete_inputs()),
        number=event.correlation_id(),
        launched_by=event.linked_correlation_id(),
    )
