"""What the loss scale and the gradients did, step by step, kept on the device until somebody asks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ampwise._base.errors import UsageError

NUM_KEPT = 1000
"""How many steps a ring remembers: 12 kB on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One step.

    Attributes:
        step: how many steps came before it.
        scale: what its loss was multiplied by.
        skipped: whether its gradients were not finite, so that the parameters stayed as they were.
        grad_norm: the norm of the unscaled gradients before clipping; None where nobody took it.
    """

    step: int
    scale: float
    skipped: bool
    grad_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The last steps, oldest first."""

    rows: tuple[HistoryRow, ...] = ()

    @property
    def num_skipped(self) -> int:
        """How many of these steps were skipped."""
        return sum(row.skipped for row in self.rows)

    def plot(self, *, width: int = 72, height: int = 8) -> str:
        """The scale over the steps as text: a dot for each step, an x for one that was skipped.

        The vertical axis is logarithmic. Where a column stands for several steps it shows the last of them, and x if
        any was skipped.

        Raises:
            UsageError: there is no room for a plot.
        """
        if width < 1 or height < 1:
            raise UsageError(f"plot(width={width}, height={height}): give at least 1 of each")
        if not self.rows:
            return "no steps yet"
        columns = _columns(self.rows, width)
        exponents = [math.log2(column[-1].scale) for column in columns]
        low, high = min(exponents), max(exponents)
        step = (high - low) / max(height - 1, 1) or 1.0
        levels = [round((exponent - low) / step) for exponent in exponents]
        marks = ["x" if any(row.skipped for row in column) else "." for column in columns]
        lines = [_line(level, low + level * step, levels, marks) for level in range(max(levels), -1, -1)]
        first, last = self.rows[0].step, self.rows[-1].step
        return "\n".join([*lines, f"          steps {first} to {last}, {self.num_skipped} skipped (x)"])


def _columns(rows: Sequence[HistoryRow], width: int) -> list[Sequence[HistoryRow]]:
    """The rows in at most ``width`` runs of as equal a length as can be."""
    count = min(width, len(rows))
    return [rows[index * len(rows) // count : (index + 1) * len(rows) // count] for index in range(count)]


def _line(level: int, exponent: float, levels: Sequence[int], marks: Sequence[str]) -> str:
    shown = "".join(mark if one == level else " " for one, mark in zip(levels, marks, strict=True))
    return f"{f'2^{exponent:.4g}':>9} {shown}".rstrip()


class HistoryRing:
    """Remembers the last steps in one tensor on the scale's device.

    Law: ``add`` and ``amend`` never wait for the device; ``read`` gives the last ``NUM_KEPT`` steps added.
    """

    def __init__(self) -> None:
        self._ring: Tensor | None = None
        self.num_steps = 0

    @torch.no_grad()
    def add(self, *, scale: Tensor, found_inf: Tensor, grad_norm: Tensor | None) -> None:
        """Take in a step. The tensors are 0-dim; a norm on another device is copied without waiting."""
        if self._ring is None or self._ring.device != scale.device:
            self._ring, self.num_steps = torch.zeros(NUM_KEPT, 3, device=scale.device), 0
        row = self._ring[self.num_steps % NUM_KEPT]
        row[0].copy_(scale)
        row[1].copy_(found_inf)
        if grad_norm is None:
            row[2].fill_(math.nan)
        else:
            row[2].copy_(grad_norm.detach(), non_blocking=True)
        self.num_steps += 1

    @torch.no_grad()
    def amend(self, found_inf: Tensor) -> None:
        """One more optimizer of the step added last found this."""
        if self._ring is not None and self.num_steps:
            self._ring[(self.num_steps - 1) % NUM_KEPT, 1].add_(found_inf)

    def read(self) -> History:
        """The steps as plain numbers; waits for the device."""
        if self._ring is None:
            return History()
        first = max(0, self.num_steps - NUM_KEPT)
        values = self._ring.tolist()
        return History(rows=tuple(_row(step, *values[step % NUM_KEPT]) for step in range(first, self.num_steps)))


def _row(step: int, scale: float, found_inf: float, grad_norm: float) -> HistoryRow:
    """A norm that is NaN was not taken, unless the step was skipped for it: then it is of no use either."""
    return HistoryRow(
        step=step, scale=scale, skipped=found_inf != 0.0, grad_norm=None if math.isnan(grad_norm) else grad_norm
    )
