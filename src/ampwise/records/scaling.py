"""What the loss scale and the gradients did, step by step, as plain numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ampwise._base.errors import UsageError
from ampwise.records.checks import CHECKS
from ampwise.records.run import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One step.

    Attributes:
        step: how many steps came before it.
        scale: what its loss was multiplied by.
        skipped: whether its gradients were not finite, so that the parameters stayed as they were.
        grad_norm: the norm of the unscaled gradients before clipping; None where nobody took it.
        zero_share: share of its gradients' elements that were zero, in a sample; None where none was taken.
        subnormal_share: share that was not zero, but below fp16's normal numbers while it was scaled.
    """

    __pydantic_config__: ClassVar = CHECKS

    step: int
    scale: float
    skipped: bool
    grad_norm: float | None = None
    zero_share: float | None = None
    subnormal_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The last steps, oldest first."""

    __pydantic_config__: ClassVar = CHECKS

    rows: tuple[HistoryRow, ...] = ()

    @property
    def num_skipped(self) -> int:
        """How many of these steps were skipped."""
        return sum(row.skipped for row in self.rows)

    def plot(self, *, width: int = 72, height: int = 8) -> str:
        """The scale over the steps as text: a dot for each step, an x for one that was skipped.

        The vertical axis is logarithmic. A column that stands for several steps shows every scale they had, and an x
        where any of them was skipped.

        Raises:
            UsageError: there is no room for a plot.
        """
        if width < 1 or height < 1:
            raise UsageError(f"plot(width={width}, height={height}): give at least 1 of each")
        if not self.rows:
            return "no steps yet"
        exponents = [math.log2(row.scale) for row in self.rows]
        low = round(min(exponents))
        span = max(exponents) - low
        step = max(1, math.ceil(span / (height - 1))) if height > 1 else 2 * math.ceil(span) + 1
        columns = [_marks(column, low, step) for column in _columns(self.rows, width)]
        top = max(max(column) for column in columns)
        lines = [_line(level, low + level * step, columns) for level in range(top, -1, -1)]
        first, last = self.rows[0].step, self.rows[-1].step
        return "\n".join([*lines, f"          steps {first} to {last}, {self.num_skipped} skipped (x)"])


def history_of(run: RunRecord, *, optimizer: int = 0) -> History:
    """What a measured run's loss scale did at one optimizer's steps; no rows where it had none."""
    return History(
        rows=tuple(
            HistoryRow(step=step.index, scale=step.scale, skipped=step.skipped)
            for step in run.steps
            if step.optimizer == optimizer and step.scale is not None
        )
    )


def _columns(rows: Sequence[HistoryRow], width: int) -> list[Sequence[HistoryRow]]:
    """The rows in at most ``width`` runs of as equal a length as can be."""
    count = min(width, len(rows))
    return [rows[index * len(rows) // count : (index + 1) * len(rows) // count] for index in range(count)]


def _marks(column: Sequence[HistoryRow], low: int, step: int) -> dict[int, str]:
    """What to draw at which level."""
    levels = [(round((math.log2(row.scale) - low) / step), row.skipped) for row in column]
    skipped = {level for level, was_skipped in levels if was_skipped}
    return {level: "x" if level in skipped else "." for level, _ in levels}


def _line(level: int, exponent: int, columns: Sequence[dict[int, str]]) -> str:
    shown = "".join(column.get(level, " ") for column in columns)
    return f"{f'2^{exponent}':>9} {shown}".rstrip()
