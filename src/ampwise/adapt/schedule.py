"""Which steps are in the safer format whatever they show."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampwise.runtime.scaling.scale_numbers import refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Groups are in the safer format in fixed steps; it stands among the triggers, and nothing holds it back.

    Example: ``Schedule(steps=[(0, 100), (900, 1000)])``: the first and the last hundred of a thousand.

    Args:
        steps: from which step to which, the second excluded; None as the second is the end. Steps count from 0.
        groups: the names of those it is about; None is all.
    """

    steps: Sequence[tuple[int, int | None]]
    groups: Sequence[str] | None = None

    def __post_init__(self) -> None:
        pairs = tuple((first, end) for first, end in self.steps)
        faults = [] if pairs else ["steps is empty; give pairs such as (0, 100)"]
        faults += [
            f"steps has ({first}, {end}); give a first step of 0 or more and a later end"
            for first, end in pairs
            if first < 0 or (end is not None and end <= first)
        ]
        refuse(faults, "Schedule")
        object.__setattr__(self, "steps", pairs)
        object.__setattr__(self, "groups", None if self.groups is None else tuple(self.groups))

    def cause(self, step: int, group: str) -> str | None:
        """Why the group is in the safer format in that step; None if it need not be."""
        if self.groups is not None and group not in self.groups:
            return None
        for first, end in self.steps:
            if first <= step and (end is None or step < end):
                return f"schedule, steps {first} to {'the end' if end is None else end - 1}"
        return None
