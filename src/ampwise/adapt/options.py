"""Checks what a user chose: what a number may be, and all mistakes of several arguments at once."""

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ampwise._base.errors import PlanError, UsageError
from ampwise._base.text import inert_line

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The numbers that an option may be; all of them finite."""

    is_whole: bool = False
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether it is one of them."""
        return math.isfinite(value) and self.least <= value <= self.most and self.above < value < self.below

    @property
    def words(self) -> str:
        """The range for a person."""
        said = (
            ("at least", self.least),
            ("above", self.above),
            ("at most", self.most),
            ("below", self.below),
        )
        return ", and ".join(f"{word} {limit:g}" for word, limit in said if math.isfinite(limit)) or "finite"

    def fault(self, name: str, value: Any) -> str | None:
        """Why the option cannot be that; None if it can."""
        if is_number(value, is_whole=self.is_whole) and self.holds(float(value)):
            return None
        is_right = is_number(value, is_whole=self.is_whole)
        kind = "" if is_right else "a whole number, " if self.is_whole else "a number, "
        return f"{name} is {shown(value)}; it must be {kind}{self.words}"


def is_number(value: Any, *, is_whole: bool = False) -> bool:
    """Whether it is a number and no bool; numpy's are numbers too."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral if is_whole else numbers.Real)


def settled(owner: Any, ranges: Mapping[str, Range]) -> list[str]:
    """What is wrong with these fields of a frozen value; those that are right become Python's own numbers."""
    faults: list[str] = []
    for name, one in ranges.items():
        value = getattr(owner, name)
        fault = one.fault(name, value)
        if fault is None:  # the value is frozen, but not out of its constructor yet
            object.__setattr__(owner, name, int(value) if one.is_whole else float(value))
        else:
            faults.append(fault)
    return faults


def shown(value: Any) -> str:
    """A wrong value as an error quotes it."""
    return inert_line(repr(value), max_length=60)


def quoted(name: str) -> str:
    """A name of a module or group as messages say it."""
    return f'"{inert_line(name, max_length=120)}"'


class Mistakes:
    """Gathers what is wrong with several arguments, so that all of it is said at once."""

    def __init__(self) -> None:
        self._found: list[UsageError] = []

    def of(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives; None if that is a mistake, which is noted."""
        try:
            return make()
        except UsageError as error:
            self._found.append(error)
            return None

    def refuse(self) -> None:
        """Raise one error for all that were noted, if any was; it is a PlanError if they are all the plan's."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            kind = PlanError if all(isinstance(one, PlanError) for one in self._found) else UsageError
            raise kind("\n".join(map(str, self._found)))
