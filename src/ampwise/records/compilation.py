"""What torch.compile made of a script's functions."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """A line at which a compiled function falls back to Python."""

    __pydantic_config__: ClassVar = CHECKS

    reason: str
    """The first line of what the compiler said."""
    count: int
    file: str | None = None
    """The user's own file."""
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRecord:
    """What the compiler did over the whole run."""

    __pydantic_config__: ClassVar = CHECKS

    num_graphs: int
    """Graphs compiled, anew for other shapes or values too."""
    num_frames: int
    """Functions that were looked at."""
    num_left: int
    """Of those, functions that were left to Python whole."""
    breaks: tuple[GraphBreak, ...] = ()
    """The most frequent first."""
