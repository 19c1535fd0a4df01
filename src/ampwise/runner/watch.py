"""Counts training steps, times them, and ends the run after enough of them, at a few microseconds a step."""

import os
import statistics
import time
from collections import deque

from ampwise.observe.events import EventBus, StepOutcome, Undo
from ampwise.runner.script import StopRun

_NUM_TIMES = 1024


class StepWatch:
    """Counts the steps that a bus tells of.

    Holds no loss and no tensor, and only the last step times, so that it may watch a training run of any length.
    """

    def __init__(self, bus: EventBus, *, stop_after: int | None = None, progress: str | None = None) -> None:
        self.num_steps = 0
        self.rank = 0
        self._knows_rank = False
        self._bus = bus
        self._stop_after = stop_after
        self._progress = progress
        self._times_ns: deque[int] = deque(maxlen=_NUM_TIMES)
        self._last_ns: dict[int, int] = {}
        self._file: int | None = None
        self._undo: Undo | None = None

    def start(self) -> None:
        """Subscribe; the last to do so, because nobody behind it is told of the step that ends the run."""
        self._undo = self._bus.subscribe(StepOutcome, self._seen)

    def close(self) -> None:
        """Forget the bus; what was counted stays."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def restart(self) -> None:
        """Count from 0 again: a forked process has made none of its parent's steps."""
        self.num_steps = 0
        self._times_ns.clear()
        self._last_ns.clear()

    def step_ms_median(self) -> float | None:
        """Median time from one step of an optimizer to its next, over the last steps; None before there are two."""
        return statistics.median(self._times_ns) / 1e6 if self._times_ns else None

    def _seen(self, outcome: StepOutcome) -> None:
        now = time.perf_counter_ns()
        key = id(outcome.optimizer)
        last = self._last_ns.get(key)
        if last is not None:
            self._times_ns.append(now - last)
        self._last_ns[key] = now
        if not self._knows_rank:  # the script may join others after its first steps, and leave them before its last
            from ampwise.compat.distributed import is_started, rank

            self.rank, self._knows_rank = rank(), is_started()
        self.num_steps += 1
        if self._progress is not None and self.rank == 0:
            self._tell(self._progress)
        if self._stop_after is not None and self.num_steps >= self._stop_after:
            raise StopRun

    def _tell(self, path: str) -> None:
        if self._file is None:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._file, b"%d\n" % self.num_steps)
