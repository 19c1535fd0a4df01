"""Ends a run whose gradients overflow at every step, with a sentence that says where and why."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ampwise._base.errors import CannotRunError
from ampwise.runtime.gradients import first_non_finite
from ampwise.runtime.loss_scale import DynamicLossScale, LossScale

MAX_SKIPS_IN_A_ROW = 50
"""Backing off from 2^16 reaches the smallest useful scale of most models after 16 skips."""


class HopelessOverflowError(CannotRunError):
    """Every step is skipped, and a smaller loss scale will not help."""


class OverflowWatch:
    """Counts skipped steps in a row."""

    def __init__(self, loss_scale: LossScale, named_parameters: Mapping[str, Tensor]) -> None:
        self._floor = loss_scale.min_scale if isinstance(loss_scale, DynamicLossScale) else -math.inf
        self._named_parameters = named_parameters
        self.num_skips_in_a_row = 0

    def check(self, *, skipped: bool, scale: Tensor | None, losses: Sequence[Tensor]) -> None:
        """Take in a step; the gradients must still be there.

        Args:
            skipped: whether the step was skipped.
            scale: the scale its gradients were made with; read only after a skip.
            losses: what it was given; read only when it raises.

        Raises:
            HopelessOverflowError: the scale was at its minimum, or every one of many steps was skipped.
        """
        if not skipped:
            self.num_skips_in_a_row = 0
            return
        self.num_skips_in_a_row += 1
        value = 1.0 if scale is None else float(scale)
        if value <= self._floor:
            raise HopelessOverflowError(self._text(f"gradients overflow at the smallest loss scale, {value:g}", losses))
        if self.num_skips_in_a_row >= MAX_SKIPS_IN_A_ROW:
            what = f"the last {self.num_skips_in_a_row} steps were all skipped; the loss scale is {value:g}"
            raise HopelessOverflowError(self._text(what, losses))

    def _text(self, what: str, losses: Sequence[Tensor]) -> str:
        names = first_non_finite(self._named_parameters)
        where = f"Non-finite gradients first in: {', '.join(names)}. " if names else ""
        if all(bool(torch.isfinite(loss).all()) for loss in losses):
            why = (
                "The loss is finite, so the backward pass overflows fp16: compute the modules named in fp32 or bf16, "
                "lower the learning rate, or use precision='bf16'."
            )
        else:
            shown = ", ".join(f"{loss.detach().float().mean().item():g}" for loss in losses)
            why = (
                f"The loss itself is {shown}, so no loss scale helps: the forward pass made it. Look at the inputs, "
                "the learning rate, and operators that overflow fp16 (above 65504), or use precision='bf16'."
            )
        return f"{what}. {where}{why}"
