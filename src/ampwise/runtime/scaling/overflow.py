"""Says why gradients overflow at every step: the scale, the backward pass, or a loss that is not finite itself."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ampwise._base.errors import CannotRunError
from ampwise.runtime.gradients.gradients import first_non_finite
from ampwise.runtime.scaling.loss_scale import (
    DynamicLossScale,
    HeadroomLossScale,
    LossScale,
    NoLossScale,
    StaticLossScale,
)

MAX_SKIPS_IN_A_ROW = 50
"""Backing off from 2^16 reaches the smallest useful scale of most models after 16 skips."""
MAX_BAD_LOSSES_IN_A_ROW = 3
"""One bad batch is skipped and forgotten; a loss that stays infinite or NaN is none of the scale's doing."""


class LossScaleWarning(UserWarning):
    """The loss scale is where it should not be; training goes on."""


class HopelessOverflowError(CannotRunError):
    """Every step is skipped, and a smaller loss scale will not help."""


class OverflowWatch:
    """Counts skipped steps in a row, and says when there is no hope.

    Args:
        floor: the scale that is never gone below; ``-inf`` for one that does not move.
        named_parameters: the parameters whose gradients to name, in order; asked only where there is a fault.
    """

    def __init__(self, floor: float, named_parameters: Callable[[], Mapping[str, Tensor]]) -> None:
        self._floor = floor
        self._named_parameters = named_parameters
        self.num_skips_in_a_row = 0
        self._num_bad_losses = 0

    def check(self, *, skipped: bool, scale: Tensor | float | None, losses: Sequence[Tensor]) -> None:
        """Take in a step as ``fault`` does.

        Raises:
            HopelessOverflowError: there is a fault.
        """
        fault = self.fault(skipped=skipped, scale=scale, losses=losses)
        if fault is not None:
            raise HopelessOverflowError(fault)

    def fault(self, *, skipped: bool, scale: Tensor | float | None, losses: Sequence[Tensor]) -> str | None:
        """Take in a step; the gradients must still be there.

        Args:
            skipped: whether the step was skipped.
            scale: the scale its gradients were made with; read only after a skip.
            losses: what it was given; read only after a skip.

        Returns:
            What is wrong, why, and what to do, if the scale was at its minimum, the loss itself was not finite three
            times in a row, or every one of 50 steps was skipped.
        """
        if not skipped:
            self.num_skips_in_a_row = self._num_bad_losses = 0
            return None
        self.num_skips_in_a_row += 1
        bad = [loss for loss in losses if not bool(torch.isfinite(loss).all())]
        self._num_bad_losses = self._num_bad_losses + 1 if bad else 0
        value = 1.0 if scale is None else float(scale)
        if value <= self._floor:
            return self._text(f"gradients overflow at the smallest loss scale, {value:g}", losses, bad)
        if self._num_bad_losses >= MAX_BAD_LOSSES_IN_A_ROW:
            return self._text(f"the loss was not finite at the last {self._num_bad_losses} steps", losses, bad)
        if self.num_skips_in_a_row >= MAX_SKIPS_IN_A_ROW:
            what = f"the last {self.num_skips_in_a_row} steps were all skipped; the loss scale is {value:g}"
            return self._text(what, losses, bad)
        return None

    def late_check(self, num_skips: int | None, *, losses: Sequence[Tensor]) -> None:
        """Look at a step as ``late_fault`` does.

        Raises:
            HopelessOverflowError: there is a fault.
        """
        fault = self.late_fault(num_skips, losses=losses)
        if fault is not None:
            raise HopelessOverflowError(fault)

    def late_fault(self, num_skips: int | None, *, losses: Sequence[Tensor]) -> str | None:
        """What is wrong where a device that is never waited for told how many steps it had skipped in a row.

        Args:
            num_skips: as ``LateNews`` tells it: some steps ago; None where there is no news.
            losses: of the step that is ending; read only where there is a fault.
        """
        if num_skips is None or num_skips < MAX_SKIPS_IN_A_ROW:
            return None
        bad = [loss for loss in losses if not bool(torch.isfinite(loss).all())]
        return self._text(f"{num_skips} steps in a row were skipped, and maybe more", losses, bad)

    def _text(self, what: str, losses: Sequence[Tensor], bad: Sequence[Tensor]) -> str:
        names = first_non_finite(self._named_parameters())
        where = f"Non-finite gradients first in: {', '.join(names)}. " if names else ""
        return f"{what}. {where}{_why(losses, bad)}"


def floor_of(loss_scale: LossScale) -> float:
    """From which scale on there is no smaller one; ``-inf`` for a scale that does not move."""
    match loss_scale:
        case DynamicLossScale() | HeadroomLossScale():
            return loss_scale.min_scale if loss_scale.min_scale < loss_scale.max_scale else -math.inf
        case NoLossScale() | StaticLossScale():
            return -math.inf


def _why(losses: Sequence[Tensor], bad: Sequence[Tensor]) -> str:
    if bad:
        shown = ", ".join(f"{loss.detach().float().mean().item():g}" for loss in losses)
        return (
            f"The loss itself is {shown}, so no loss scale helps: the forward pass made it. Look at the inputs, "
            "the learning rate, and operators that overflow fp16 (above 65504), or use bf16."
        )
    if losses:
        return (
            "The loss is finite, so the backward pass overflows fp16: compute the modules named in fp32 or bf16, "
            "lower the learning rate, or use bf16."
        )
    return "If the loss is NaN too, the forward pass makes it: look there, lower the learning rate, or use bf16."
