"""Which groups of modules changed their format while a model trained, and why."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRecord:
    """A group of modules that moved to another format."""

    __pydantic_config__: ClassVar = CHECKS

    step: int
    """The first that was computed so."""
    group: str
    before: str
    after: str
    """Formats: ``fp16``."""
    is_raised: bool
    """``after`` is the safer of the two."""
    cause: str
    """What moved it, for a person."""
