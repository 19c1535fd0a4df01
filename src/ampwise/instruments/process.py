"""What a loop costs the operating system, and in which part of it its time goes."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Self

from ampwise.compat.data import num_workers_of
from ampwise.instruments.clocks import Clock, WallClock, clock_of
from ampwise.interpose.data import NEXT_BATCH
from ampwise.interpose.seam import intercept
from ampwise.observe.events import (
    BackwardEnded,
    BackwardStarted,
    EventBus,
    ForwardEnded,
    ForwardStarted,
    StepOutcome,
    StepStarted,
)
from ampwise.records.process import ProcessRecord, StepParts

_WARM_UP: Final = 2
_MAX_STEPS: Final = 1_000
"""Steps after which the parts are no longer marked: an average over a thousand says all."""
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER, _STEP = "data", "forward", "backward", "optimizer", "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the operating system has counted of this process so far."""

    wall_ns: int
    user_s: float
    system_s: float
    minor_faults: int
    major_faults: int


def usage_now() -> Usage:
    """What the operating system has counted by now; zeros where it counts nothing."""
    if sys.platform == "win32":
        return Usage(wall_ns=time.perf_counter_ns(), user_s=0.0, system_s=0.0, minor_faults=0, major_faults=0)
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(
        wall_ns=time.perf_counter_ns(),
        user_s=used.ru_utime,
        system_s=used.ru_stime,
        minor_faults=used.ru_minflt,
        major_faults=used.ru_majflt,
    )


class ProcessWatch:
    """Records page faults, CPU time and the parts of every step but the first two, while entered.

    Steps in ``leave_out`` are in no figure: other instruments slow them. On a GPU the parts are marked in its stream;
    waiting for the DataLoader is the host's.

    Args:
        bus: Where the loop's events are published.
        leave_out: Indices of the steps that others slow.
    """

    def __init__(self, bus: EventBus, *, leave_out: Collection[int] = ()) -> None:
        self._bus = bus
        self._leave_out = leave_out
        self._undo = ExitStack()
        self._clock: Clock = WallClock()
        self._step = 0
        self._last: Usage | None = None
        self._sum = Usage(wall_ns=0, user_s=0.0, system_s=0.0, minor_faults=0, major_faults=0)
        self._num_steps = 0
        self._open: dict[str, Any] = {}
        self._marks: list[tuple[str, Any, Any]] = []
        self._waiting: list[tuple[str, Any, Any]] = []
        self._data_ms = 0.0
        self._waiting_data_ms = 0.0
        self._has_loader = False
        self._num_workers = 0
        self._cost_ns = 0

    def __enter__(self) -> Self:
        listeners: dict[type[Any], Callable[[Any], None]] = {
            ForwardStarted: lambda _: self._begin(_FORWARD),
            ForwardEnded: lambda _: self._end(_FORWARD),
            BackwardStarted: self._on_backward,
            BackwardEnded: lambda _: self._end(_BACKWARD),
            StepStarted: lambda _: self._begin(_OPTIMIZER),
            StepOutcome: self._on_step,
        }
        for kind, listener in listeners.items():
            self._undo.callback(self._bus.subscribe(kind, listener))
        self._undo.callback(intercept(NEXT_BATCH, self._around_data))
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing: none, for a mark takes a microsecond."""
        return frozenset()

    def record(self) -> ProcessRecord:
        """What was seen so far; waits for the device."""
        total = self._sum
        return ProcessRecord(
            num_steps=self._num_steps,
            wall_ms=total.wall_ns / 1e6,
            user_ms=total.user_s * 1e3,
            system_ms=total.system_s * 1e3,
            minor_faults=total.minor_faults,
            major_faults=total.major_faults,
            parts=self._parts(),
            has_loader=self._has_loader,
            num_workers=self._num_workers,
            is_device_time=not isinstance(self._clock, WallClock),
            cost_ms=self._cost_ns / 1e6 / max(self._step, 1),
        )

    def _parts(self) -> StepParts | None:
        sums: dict[str, float] = defaultdict(float)
        num_steps = sum(name == _STEP for name, _, _ in self._marks)
        if not num_steps:
            return None
        for name, start, end in self._marks:
            sums[name] += self._clock.ms_between(start, end) / num_steps
        data = self._data_ms / num_steps
        known = data + sums[_FORWARD] + sums[_BACKWARD] + sums[_OPTIMIZER]
        return StepParts(
            data_ms=data,
            forward_ms=sums[_FORWARD],
            backward_ms=sums[_BACKWARD],
            optimizer_ms=sums[_OPTIMIZER],
            other_ms=max(0.0, sums[_STEP] - known),
        )

    def _begin(self, name: str) -> None:
        if self._is_marking:
            self._open.setdefault(name, self._clock.mark())

    def _end(self, name: str) -> None:
        start = self._open.pop(name, None)
        if start is not None:
            self._waiting.append((name, start, self._clock.mark()))

    def _on_backward(self, event: BackwardStarted) -> None:
        if self._step == 0 and event.roots and isinstance(self._clock, WallClock):
            self._clock = clock_of(event.roots[0].device)
            self._open.clear()
        self._begin(_BACKWARD)

    @property
    def _is_marking(self) -> bool:
        return self._step >= _WARM_UP and len(self._marks) < _MAX_STEPS

    def _on_step(self, _: StepOutcome) -> None:
        start_ns = time.perf_counter_ns()
        self._end(_OPTIMIZER)
        self._end(_STEP)
        now = usage_now()
        if self._step >= _WARM_UP and self._step not in self._leave_out and self._last is not None:
            self._add(self._last, now)
        self._waiting, self._waiting_data_ms = [], 0.0
        self._open.clear()
        self._step += 1
        self._begin(_STEP)
        self._cost_ns += time.perf_counter_ns() - start_ns
        self._last = usage_now()

    def _add(self, before: Usage, now: Usage) -> None:
        total = self._sum
        self._sum = Usage(
            wall_ns=total.wall_ns + now.wall_ns - before.wall_ns,
            user_s=total.user_s + now.user_s - before.user_s,
            system_s=total.system_s + now.system_s - before.system_s,
            minor_faults=total.minor_faults + now.minor_faults - before.minor_faults,
            major_faults=total.major_faults + now.major_faults - before.major_faults,
        )
        self._num_steps += 1
        if any(name == _STEP for name, _, _ in self._waiting):
            self._marks += self._waiting
            self._data_ms += self._waiting_data_ms

    def _around_data(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._has_loader = True
        self._num_workers = max([self._num_workers, *(num_workers_of(iterator) for iterator in args[:1])])
        start = time.perf_counter_ns()
        try:
            return proceed(*args, **kwargs)
        finally:
            self._waiting_data_ms += (time.perf_counter_ns() - start) / 1e6
