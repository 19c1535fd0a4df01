"""What the loss scale and the gradients did, step by step, kept on the device until somebody asks."""

import math

import torch
from torch import Tensor

from ampwise.records.scaling import History, HistoryRow
from ampwise.runtime.result import StepResult

NUM_KEPT = 1000
"""How many steps a ring remembers: 20 kB on the device."""

__all__ = ["NUM_KEPT", "History", "HistoryRing", "HistoryRow"]


class HistoryRing:
    """Remembers the last steps in one tensor on the scale's device.

    Law: ``add`` and ``amend`` never wait for the device; ``read`` gives the last ``NUM_KEPT`` steps added.

    Attributes:
        is_paused: whether steps are left out. The row of a step is chosen on the host, so a step that is recorded
            into a graph would write to the same row at every replay.
    """

    def __init__(self) -> None:
        self.is_paused = False
        self._ring: Tensor | None = None
        self.num_steps = 0

    @torch.no_grad()
    def add(
        self, *, scale: Tensor, found_inf: Tensor, grad_norm: Tensor | None, shares: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Take in a step. The tensors are 0-dim; those on another device are copied without waiting.

        Args:
            scale: what its loss was multiplied by.
            found_inf: not 0 after an overflow.
            grad_norm: of its unscaled gradients.
            shares: of its gradients that were zero, and subnormal in fp16.
        """
        if self.is_paused:
            return
        if self._ring is None or self._ring.device != scale.device:
            self._ring, self.num_steps = torch.zeros(NUM_KEPT, 5, device=scale.device), 0
        row = self._ring[self.num_steps % NUM_KEPT]
        row.fill_(math.nan)
        for place, value in enumerate((scale, found_inf, grad_norm, *(shares or ()))):
            if value is not None:
                row[place].copy_(value.detach(), non_blocking=True)
        self.num_steps += 1

    def add_norm(self, grad_norm: Tensor | None) -> None:
        """Take in a step without a loss scale; it is left out if nobody took its norm."""
        if grad_norm is not None:
            one = torch.ones((), device=grad_norm.device)
            self.add(scale=one, found_inf=torch.zeros_like(one), grad_norm=grad_norm)

    def add_result(self, result: StepResult) -> None:
        """Take in a step by what it left, if that is a scale or a norm."""
        known = result.grad_norm_tensor if result.scale_tensor is None else result.scale_tensor
        if known is not None:
            one = torch.ones((), device=known.device)
            self.add(
                scale=one if result.scale_tensor is None else result.scale_tensor,
                found_inf=result.found_inf if isinstance(result.found_inf, Tensor) else torch.zeros_like(one),
                grad_norm=result.grad_norm_tensor,
            )

    @torch.no_grad()
    def amend(self, found_inf: Tensor) -> None:
        """One more optimizer of the step added last found this."""
        if self._ring is not None and self.num_steps and not self.is_paused:
            self._ring[(self.num_steps - 1) % NUM_KEPT, 1].add_(found_inf)

    def read(self) -> History:
        """The steps as plain numbers; waits for the device."""
        if self._ring is None:
            return History()
        first = max(0, self.num_steps - NUM_KEPT)
        values = self._ring.tolist()
        return History(rows=tuple(_row(step, *values[step % NUM_KEPT]) for step in range(first, self.num_steps)))


def _row(step: int, scale: float, found_inf: float, grad_norm: float, zero: float, subnormal: float) -> HistoryRow:
    """A norm that is NaN was not taken, unless the step was skipped for it: then it is of no use either."""
    return HistoryRow(
        step=step,
        scale=scale,
        skipped=found_inf != 0.0,
        grad_norm=_known(grad_norm),
        zero_share=_known(zero),
        subnormal_share=_known(subnormal),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
