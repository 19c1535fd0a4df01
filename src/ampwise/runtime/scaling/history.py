"""What the loss scale and the gradients did, step by step, kept where it is until somebody asks."""

import math

import torch
from torch import Tensor

from ampwise.records.scaling import History, HistoryRow
from ampwise.runtime.hardware import host
from ampwise.runtime.scaling.result import StepResult

NUM_KEPT = 1000
"""How many steps a ring remembers: 20 kB on the device."""

__all__ = ["NUM_KEPT", "History", "HistoryRing", "HistoryRow"]


class HistoryRing:
    """Remembers the last steps where their numbers are: on the scale's device, or as plain numbers on a CPU.

    Law: ``add`` and ``amend`` never wait for the device; ``read`` gives the last ``NUM_KEPT`` steps added.

    Attributes:
        is_paused: whether steps are left out. The row of a step is chosen on the host, so a step that is recorded
            into a graph would write to the same row at every replay.
    """

    def __init__(self) -> None:
        self.is_paused = False
        self._ring: Tensor | list[list[float]] = []
        self.num_steps = 0

    @torch.no_grad()
    def add(
        self,
        *,
        scale: Tensor | float,
        found_inf: Tensor | float,
        grad_norm: Tensor | None,
        shares: tuple[Tensor, Tensor] | None = None,
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
        values = (scale, found_inf, grad_norm, *(shares or (None, None)))
        device = next(one.device for one in values if isinstance(one, Tensor))
        if all(not isinstance(one, Tensor) or host.reads_freely(one) for one in values):
            self._keep_on_host([math.nan if one is None else float(one) for one in values])
        else:
            self._keep_on_device(values, device)
        self.num_steps += 1

    def add_norm(self, grad_norm: Tensor | None) -> None:
        """Take in a step without a loss scale; it is left out if nobody took its norm."""
        if grad_norm is not None:
            self.add(scale=1.0, found_inf=0.0, grad_norm=grad_norm)

    def add_result(self, result: StepResult) -> None:
        """Take in a step by what it left, if that is a scale or a norm."""
        scale, norm = result.scale_tensor, result.grad_norm_tensor
        if scale is not None or norm is not None:
            found = result.found_inf if isinstance(result.found_inf, Tensor) else 0.0
            self.add(scale=1.0 if scale is None else scale, found_inf=found, grad_norm=norm)

    @torch.no_grad()
    def amend(self, found_inf: Tensor) -> None:
        """One more optimizer of the step added last found this."""
        if not self.num_steps or self.is_paused:
            return
        place = (self.num_steps - 1) % NUM_KEPT
        if isinstance(self._ring, Tensor):
            self._ring[place, 1].add_(found_inf)
        else:
            self._ring[place][1] += float(found_inf)

    def read(self) -> History:
        """The steps as plain numbers; waits for the device."""
        values = self._ring.tolist() if isinstance(self._ring, Tensor) else self._ring
        first = max(0, self.num_steps - NUM_KEPT)
        return History(rows=tuple(_row(step, *values[step % NUM_KEPT]) for step in range(first, self.num_steps)))

    def _keep_on_host(self, row: list[float]) -> None:
        if isinstance(self._ring, Tensor):
            self._ring, self.num_steps = [], 0
        if len(self._ring) < NUM_KEPT:
            self._ring.append(row)
        else:
            self._ring[self.num_steps % NUM_KEPT] = row

    def _keep_on_device(self, values: tuple[Tensor | float | None, ...], device: torch.device) -> None:
        if not isinstance(self._ring, Tensor) or self._ring.device != device:
            self._ring, self.num_steps = torch.zeros(NUM_KEPT, 5, device=device), 0
        row = self._ring[self.num_steps % NUM_KEPT]
        row.fill_(math.nan)
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                row[place].copy_(value.detach(), non_blocking=True)
            elif value is not None:
                row[place].fill_(value)


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
