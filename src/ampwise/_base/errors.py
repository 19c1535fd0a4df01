"""The errors ampwise raises, each with the exit status the command line gives it."""

from typing import ClassVar


class AmpwiseError(Exception):
    """Something ampwise cannot do; its text says what was given, what is possible and what to do."""

    exit_status: ClassVar[int] = 3


class UsageError(AmpwiseError, ValueError):
    """An argument that is not one of those possible."""

    exit_status: ClassVar[int] = 2


class PlanError(UsageError):
    """A plan that is wrong; its text names every mistake with its path in the plan."""


class CannotRunError(AmpwiseError, RuntimeError):
    """A well-formed request that this machine, torch or script cannot serve."""


class RecordError(AmpwiseError, ValueError):
    """A record that cannot be read: corrupt, foreign, or of a newer version."""


# A traceback names them as users import them.
for _error in (AmpwiseError, UsageError, PlanError, CannotRunError, RecordError):
    _error.__module__ = "ampwise"
