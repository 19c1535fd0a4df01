"""Publishes what a TrainStep does, as the rows of ``interpose`` publish what a loop by hand does."""

from dataclasses import replace

from torch import Tensor
from torch.optim import Optimizer

from ampwise.observe.events import (
    BUS,
    BackwardEnded,
    BackwardStarted,
    LoopEvent,
    PrecisionTaken,
    StepOutcome,
    StepStarted,
)
from ampwise.runtime.scaling.result import StepResult
from ampwise.runtime.step.findings import outcome_of


class LoopEvents:
    """The events of one TrainStep. What nobody listens to is not even made.

    Attributes:
        is_recording: a step is recorded into a graph: nothing is told of it, but of each of its replays.
    """

    def __init__(self, precision: str) -> None:
        self.is_recording = False
        BUS.publish(PrecisionTaken(what=f"ampwise.TrainStep ({precision})"))

    def backward_started(self, losses: tuple[Tensor, ...]) -> None:
        """A backward pass from the losses, unscaled, is about to run."""
        if self._is_wanted(BackwardStarted):
            BUS.publish(BackwardStarted(roots=losses))

    def backward_ended(self, losses: tuple[Tensor, ...]) -> None:
        """It has run."""
        if self._is_wanted(BackwardEnded):
            BUS.publish(BackwardEnded(roots=losses))

    def step_started(self, optimizer: Optimizer) -> None:
        """The optimizer is about to step, or to be skipped."""
        if self._is_wanted(StepStarted):
            BUS.publish(StepStarted(optimizer=optimizer))

    def step_ended(self, optimizer: Optimizer, result: StepResult, norm: Tensor | None) -> None:
        """It has, with this result and this norm of the gradients."""
        if self._is_wanted(StepOutcome):
            BUS.publish(outcome_of(optimizer, replace(result, grad_norm_tensor=norm)))

    def _is_wanted(self, kind: type[LoopEvent]) -> bool:
        return not self.is_recording and BUS.wants(kind)
