"""Profiles one step of a loop, and says where its time went."""

import statistics
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Self

import torch

from ampwise.compat.profiler import ProfiledEvent, StepProfiler, is_profiling
from ampwise.compat.tf32 import tf32_state
from ampwise.instruments.kernel_analysis import analyse
from ampwise.interpose.internal import internal
from ampwise.observe.events import EventBus, StepOutcome
from ampwise.records.kernels import KernelRecord, Tf32Switches

_BUSY: Final = "not profiled: the script's own profiler is running"


class KernelWatch:
    """Runs torch's profiler over step ``step``, while entered in the thread that trains.

    The step's end waits for the device, so that its kernels are its own. The profiler sees what compiled code calls,
    too. It makes a step longer by some microseconds an operator: shares say more than times.

    Args:
        bus: Where the loop's events are published.
        step: Index of the step; no other instrument should watch operators in it.
    """

    def __init__(self, bus: EventBus, *, step: int = 4) -> None:
        self._bus = bus
        self._wanted = step
        self._undo = ExitStack()
        self._step = 0
        self._profiler: StepProfiler | None = None
        self._start_ns = time.perf_counter_ns()
        self._times_ms: list[float] = []
        self._wall_ms = 0.0
        self._events: list[ProfiledEvent] | None = None
        self._note: str | None = None
        self._tf32: Tf32Switches | None = None

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        self._undo.callback(self._stop)
        self._start_if_wanted()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing: the one profiled, and the next, which pays for its end."""
        return frozenset() if self._events is None else frozenset({self._wanted, self._wanted + 1})

    def record(self) -> KernelRecord:
        """What was seen."""
        if self._events is None or self._note is not None:
            short = f"not profiled: the run ended before step {self._wanted + 1} did"
            return KernelRecord(note=self._note or short)
        record = analyse(self._events, step=self._wanted, wall_ms=self._wall_ms)
        usual = statistics.median(self._times_ms[1:] or self._times_ms or [self._wall_ms])
        is_cuda = record.device == "cuda"
        return replace(
            record,
            device_name=torch.cuda.get_device_name() if is_cuda else "",
            instructions="" if is_cuda else torch.backends.cpu.get_cpu_capability(),
            cost_ms=max(0.0, self._wall_ms - usual),
            tf32=self._tf32,
        )

    def _on_step(self, _: StepOutcome) -> None:
        if self._profiler is not None:
            _wait()
            self._wall_ms = (time.perf_counter_ns() - self._start_ns) / 1e6
            self._events = self._stop()
            state = tf32_state()
            self._tf32 = Tf32Switches(matmul=state.matmul, conv=state.conv, clash=state.clash)
        elif self._step < self._wanted:
            self._times_ms.append((time.perf_counter_ns() - self._start_ns) / 1e6)
        self._step += 1
        self._start_if_wanted()
        self._start_ns = time.perf_counter_ns()

    def _start_if_wanted(self) -> None:
        if self._step != self._wanted:
            return
        if is_profiling():
            self._note = _BUSY
            return
        _wait()
        self._profiler = StepProfiler()
        try:
            self._profiler.start()
        except RuntimeError as error:
            self._profiler, self._note = None, f"not profiled: {error}"

    def _stop(self) -> list[ProfiledEvent] | None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        with internal():
            try:
                return profiler.stop()
            except RuntimeError as error:
                self._note = f"not profiled: {error}"
                return None


def _wait() -> None:
    if torch.cuda.is_initialized():
        with internal():
            torch.cuda.synchronize()
