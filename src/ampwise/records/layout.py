"""Which modules a script's models have, and what plans call them."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleEntry:
    """One module."""

    __pydantic_config__: ClassVar = CHECKS

    root: str
    """What its model is called."""
    path: str
    """From its model; empty for the model itself."""
    name: str
    """As plans and reports write it: the path, behind the model's name where there are several models."""
    kind: str
    """Its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRecord:
    """The modules of every model that was called, each model's from its root down."""

    __pydantic_config__: ClassVar = CHECKS

    modules: tuple[ModuleEntry, ...]
