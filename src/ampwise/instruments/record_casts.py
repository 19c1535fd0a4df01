"""``ampwise.record_casts()``: what somebody's own loop computes in which format."""

from contextlib import ExitStack
from typing import Self

from torch.optim import Optimizer

from ampwise.instruments.casts import CastWatch
from ampwise.observe.events import BUS, EventBus
from ampwise.observe.live import live_objects
from ampwise.observe.loop import LoopWatcher
from ampwise.records.casts import CastRecord


class CastRecorder:
    """Watches every operator of this thread while entered.

    Args:
        bus: Where the loop's events are published.
    """

    def __init__(self, bus: EventBus = BUS) -> None:
        self._bus = bus
        self._undo = ExitStack()
        self._watch = CastWatch(bus, steps=None)

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.share(self._loop))
        self._undo.enter_context(self._watch)
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    def _loop(self) -> LoopWatcher:
        return LoopWatcher(self._bus, has_optimizer=any(True for _ in live_objects(Optimizer)))

    @property
    def record(self) -> CastRecord:
        """What was seen so far: which operator computed in which dtype, and what was cast, where and why."""
        return self._watch.record()


def record_casts() -> CastRecorder:
    """A context manager that records which formats a loop computes in, and the casts that takes.

    Watch a few steps only: each operator takes some 20 microseconds longer::

        with ampwise.record_casts() as casts:
            for x, y in itertools.islice(loader, 3):
                train_step(x, y)
        print(casts.record.num_casts, casts.record.byte_share)

    What compiled code does is not seen.
    """
    return CastRecorder()
