"""What a loop keeps in memory: a timeline over one step, what outlives the steps, and the device's own figures."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

from ampwise.compat.allocator import allocator_states
from ampwise.instruments.kept_graphs import KeptGraphs
from ampwise.instruments.memory_timeline import MemoryTimeline
from ampwise.interpose.host_reads import EMPTY_CACHE
from ampwise.interpose.seam import intercept
from ampwise.observe.events import EventBus, StepOutcome
from ampwise.observe.frames import Line, user_line
from ampwise.observe.modules import ModuleStack
from ampwise.records.memory import CacheEmptied, MemoryRecord, StepEnd
from ampwise.records.site import Phase, Site


class MemoryWatch:
    """Records a run's memory, while entered in the thread that trains.

    Args:
        bus: Where the loop's events are published.
        step: Index of the step of the timeline.
        stack: Says which module is being called; by default one of its own.
    """

    def __init__(self, bus: EventBus, *, step: int = 3, stack: ModuleStack | None = None) -> None:
        self._bus = bus
        self._step = step
        self._timeline = MemoryTimeline(bus, step=step, stack=stack)
        self._kept = KeptGraphs(bus, steps=(step, step + 2, step + 3, step + 4))
        self._undo = ExitStack()
        self._num_steps = 0
        self._emptied: Counter[Line | None] = Counter()
        self._in_loop: set[Line | None] = set()

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        self._undo.callback(intercept(EMPTY_CACHE, self._around_empty_cache))
        self._undo.enter_context(self._timeline)
        self._undo.enter_context(self._kept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return self._timeline.slowed_steps | self._kept.slowed_steps

    def record(self) -> MemoryRecord:
        """What was seen so far."""
        record = self._timeline.record()
        return replace(
            record,
            step_ends=tuple(self._with_casts(end) for end in self._kept.step_ends),
            kept=self._kept.kept(),
            cache_emptied=tuple(self._cache_emptied()),
            allocators=allocator_states(),
            note="; ".join(note for note in (record.note, self._kept.note) if note) or None,
        )

    def _with_casts(self, end: StepEnd) -> StepEnd:
        is_timeline = end.step == self._step
        return replace(end, cached_cast_bytes=self._timeline.cached_cast_bytes) if is_timeline else end

    def _cache_emptied(self) -> list[CacheEmptied]:
        return [
            CacheEmptied(
                site=Site(
                    phase=Phase.OTHER,
                    op="torch.cuda.empty_cache",
                    file=line.shown_file if line else None,
                    line=line.line if line else None,
                ),
                count=count,
                in_loop=line in self._in_loop and count > 1,
            )
            for line, count in self._emptied.most_common()
        ]

    def _on_step(self, _: StepOutcome) -> None:
        self._num_steps += 1

    def _around_empty_cache(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        line = user_line()
        self._emptied[line] += 1
        if self._num_steps:
            self._in_loop.add(line)
        return proceed(*args, **kwargs)
