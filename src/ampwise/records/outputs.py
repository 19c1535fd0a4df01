"""What a model gave in the forward passes of an evaluation: enough of it to set two precisions side by side."""

import math
from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSample:
    """Some numbers of one forward pass's output, evenly spread, and the decisions that its rows come to."""

    __pydantic_config__: ClassVar = CHECKS

    shape: tuple[int, ...]
    numbers: tuple[float, ...]
    decisions: tuple[int, ...] = ()
    """The place of the largest number in some of the rows along the last dimension; none where a row is one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """The first floating-point tensor that the model gave in each forward pass, the first first."""

    __pydantic_config__: ClassVar = CHECKS

    samples: tuple[OutputSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDistance:
    """How far outputs are from those of the same forward passes in fp32."""

    __pydantic_config__: ClassVar = CHECKS

    relative_error: float
    """Euclidean size of the difference over that of fp32's numbers; infinite where one of ours alone is not finite."""
    num_decisions: int
    num_flips: int
    """Decisions that are others than fp32's."""

    @property
    def flips(self) -> float | None:
        """Share of the decisions that are others; None where rows come to none."""
        return self.num_flips / self.num_decisions if self.num_decisions else None


def distance(ours: OutputRecord, theirs: OutputRecord) -> OutputDistance | None:
    """How far ``ours`` are from ``theirs``, which is fp32; None where no two passes are of one shape."""
    pairs = [(one, other) for one, other in zip(ours.samples, theirs.samples, strict=False) if one.shape == other.shape]
    if not pairs:
        return None
    numbers = [pair for one, other in pairs for pair in zip(one.numbers, other.numbers, strict=True)]
    finite = [(mine, its) for mine, its in numbers if math.isfinite(its)]
    decisions = [pair for one, other in pairs for pair in zip(one.decisions, other.decisions, strict=True)]
    size = math.hypot(*(its for _, its in finite))
    off = math.hypot(*(mine - its for mine, its in finite))
    return OutputDistance(
        relative_error=(off / size if size else math.inf if off else 0.0) if not math.isnan(off) else math.inf,
        num_decisions=len(decisions),
        num_flips=sum(mine != its for mine, its in decisions),
    )
