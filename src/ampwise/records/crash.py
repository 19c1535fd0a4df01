"""What a script was in the middle of when it crashed: the call that raised, its tensors, the module around it."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashTensor:
    """A tensor that the failing call was given."""

    __pydantic_config__: ClassVar = CHECKS

    name: str
    """As the source writes it: ``self.weight``; of a parameter, its path."""
    dtype: str
    """The format as users say it."""
    device: str
    """``cpu``, ``cuda:0``."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedResult:
    """A statement that makes a moved or cast tensor and keeps nothing of it: ``x.to(device)``."""

    __pydantic_config__: ClassVar = CHECKS

    source: str
    name: str
    """The tensor that stays as it was."""
    file: str
    line: int

    @property
    def where(self) -> str:
        """``train.py:31``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashRecord:
    """Where an uncaught exception came from."""

    __pydantic_config__: ClassVar = CHECKS

    site: Site
    """Its ``op`` is the function that the failing line calls: ``linear``."""
    expression: str
    """The part of the source that raised: ``F.linear(input, self.weight, self.bias)``; empty where it is not known."""
    module_kind: str | None = None
    """The innermost module's class."""
    tensors: tuple[CrashTensor, ...] = ()
    """Those the expression names, at most eight."""
    low_parameters: tuple[CrashTensor, ...] = ()
    """Parameters in half precision of the optimizer that was at work, at most eight."""
    num_low_parameters: int = 0
    dropped: tuple[DroppedResult, ...] = ()
    """In the functions that led here, at most eight."""
