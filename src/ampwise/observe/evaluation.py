"""Finds the forward passes of a script that only evaluates, and publishes each as a step."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import torch

from ampwise.observe.events import (
    BackwardStarted,
    EventBus,
    ForwardEnded,
    ForwardStarted,
    StepOutcome,
    StepStarted,
)


class EvaluationLoop:
    """Publishes a step for every forward pass without gradients of the first model that has parameters.

    Other models' passes are none: a loop that calls an encoder and then a decoder is counted by the first. Nor are
    passes with gradients.

    Args:
        bus: where calls of modules are published, and where the steps go.
        on_training: called at a backward pass: this is no evaluation.
    """

    def __init__(self, bus: EventBus, *, on_training: Callable[[], None]) -> None:
        self._bus, self._on_training = bus, on_training
        self._model: Any = None
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(ForwardStarted, self._on_start))
        self._undo.callback(self._bus.subscribe(ForwardEnded, self._on_end))
        self._undo.callback(self._bus.subscribe(BackwardStarted, lambda _: self._on_training()))
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
        self._model = None

    def _on_start(self, event: ForwardStarted) -> None:
        if self._model is None and not torch.is_grad_enabled() and any(True for _ in event.module.parameters()):
            self._model = event.module
        if self._is_step(event.module):
            self._bus.publish(StepStarted(optimizer=None))

    def _on_end(self, event: ForwardEnded) -> None:
        if self._is_step(event.module):
            self._bus.publish(StepOutcome(optimizer=None))

    def _is_step(self, module: Any) -> bool:
        return module is self._model and not torch.is_grad_enabled()
