"""Where in a training loop something happened: the pass, the module, the operator, the user's own line."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS


class Phase(StrEnum):
    """Which part of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    """Between them: the loss, the data, the logging, or outside of any step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where something happened; a part that is not known is None."""

    __pydantic_config__: ClassVar = CHECKS

    phase: Phase
    module: str | None = None
    """The path ``named_modules`` gives it from its root, as plans write it; ``""`` is the root itself."""
    op: str | None = None
    """torch's own name of the operator: ``aten.mm``."""
    file: str | None = None
    """The user's own file, as the script's path names it."""
    line: int | None = None

    @property
    def where(self) -> str:
        """``train.py:31``; the file alone where no line is known, and nothing where no file is."""
        if self.file is None:
            return ""
        return self.file if self.line is None else f"{self.file}:{self.line}"
