"""A recording: everything measured of one script, versioned, in one JSON file."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.comparison import Comparison
from ampwise.records.environment import Environment
from ampwise.records.run import RunRecord

VERSION = 2
"""Raised whenever a field is added or changes its meaning; files of older versions stay readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Runs of one script, where they took place, and what they came to."""

    __pydantic_config__: ClassVar = CHECKS

    version: int = VERSION
    created: str
    """ISO 8601 with time zone."""
    command: tuple[str, ...]
    """The script and its arguments, as the user typed them."""
    environment: Environment
    runs: tuple[RunRecord, ...]
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    """What the reader should know of all runs together."""
