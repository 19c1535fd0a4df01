"""Writes down when a scheduler moved groups of modules to another format, and why."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from ampwise.observe.events import EventBus, PrecisionSwitched, StepOutcome
from ampwise.records.switches import SwitchRecord


class SwitchWatch:
    """Listens while entered; costs nothing but in a step that switches.

    Args:
        bus: Where the loop's events are published.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._undo = ExitStack()
        self._num_steps = 0
        self._switches: list[SwitchRecord] = []

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        self._undo.callback(self._bus.subscribe(PrecisionSwitched, self._on_switch))
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """None: nothing happens in a step."""
        return frozenset()

    def record(self) -> tuple[SwitchRecord, ...]:
        """The switches so far."""
        return tuple(self._switches)

    def _on_step(self, _: StepOutcome) -> None:
        self._num_steps += 1

    def _on_switch(self, event: PrecisionSwitched) -> None:
        self._switches.append(replace(event.switch, step=self._num_steps))
