"""A recording: everything measured of one script, versioned, in one JSON file."""

from dataclasses import dataclass

from ampwise.records.comparison import Comparison
from ampwise.records.environment import Environment
from ampwise.records.run import RunRecord

VERSION = 1
"""Raised whenever a reader of the old version would misread the new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Runs of one script, where they took place, and what they came to."""

    version: int = VERSION
    created: str
    """ISO 8601 with time zone."""
    command: tuple[str, ...]
    """The script and its arguments, as the user typed them."""
    environment: Environment
    runs: tuple[RunRecord, ...]
    comparison: Comparison | None = None
