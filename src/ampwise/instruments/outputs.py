"""Keeps some numbers of what a model gives in each forward pass of an evaluation."""

from contextlib import ExitStack
from typing import Any, Self

from torch import Tensor

from ampwise.interpose.internal import internal
from ampwise.observe.dtypes import leaf_tensors
from ampwise.observe.events import EventBus, ForwardEnded, StepOutcome
from ampwise.observe.statistics import sample
from ampwise.records.outputs import OutputRecord, OutputSample

_NUMBERS = 256
_ROWS = 64
_MAX_STEPS = 1000
"""Forward passes whose outputs are kept."""
_Kept = tuple[tuple[int, ...], Tensor, Tensor | None]
"""The shape, some numbers and some decisions of an output, on its device."""


class OutputWatch:
    """Samples the outputs of the steps that ``EvaluationLoop`` publishes, while entered; waits for no device.

    Enter it before the loop, so that it knows a pass's output when the step is told.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._undo = ExitStack()
        self._output: Any = None
        self._kept: list[_Kept] = []

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(ForwardEnded, self._on_end))
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
        self._output = None

    def record(self) -> OutputRecord:
        """What was kept; waits for the device."""
        with internal():
            return OutputRecord(samples=tuple(_read(one) for one in self._kept))

    def _on_end(self, event: ForwardEnded) -> None:
        self._output = event.output

    def _on_step(self, _: StepOutcome) -> None:
        output, self._output = self._output, None
        with internal():
            found = next((one for one in leaf_tensors(output) if one.is_floating_point() and one.numel()), None)
            if found is not None and len(self._kept) < _MAX_STEPS:
                self._kept.append(_keep(found.detach()))


def _keep(output: Tensor) -> _Kept:
    has_rows = output.dim() > 1 and output.shape[-1] > 1
    rows = output.reshape(-1, output.shape[-1]) if has_rows else None
    decisions = None if rows is None else rows[:: -(-len(rows) // _ROWS)].argmax(-1)
    return tuple(output.shape), sample(output, limit=_NUMBERS).float().clone(), decisions


def _read(kept: _Kept) -> OutputSample:
    shape, numbers, decisions = kept
    chosen = () if decisions is None else tuple(decisions.tolist())
    return OutputSample(shape=shape, numbers=tuple(numbers.tolist()), decisions=chosen)
