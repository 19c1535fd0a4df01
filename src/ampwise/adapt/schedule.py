"""Which steps are in the safer format whatever they show."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ampwise.adapt.options import is_number, shown
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
        faults = [*_step_faults(self.steps), *_group_faults(self.groups)]
        refuse(faults, "Schedule")  # the value is frozen, but not out of its constructor yet
        pairs = ((int(first), None if end is None else int(end)) for first, end in self.steps)
        object.__setattr__(self, "steps", tuple(pairs))
        object.__setattr__(self, "groups", None if self.groups is None else tuple(self.groups))

    def cause(self, step: int, group: str) -> str | None:
        """Why the group is in the safer format in that step; None if it need not be."""
        if self.groups is not None and group not in self.groups:
            return None
        for first, end in self.steps:
            if first <= step and (end is None or step < end):
                return f"schedule, steps {first} to {'the end' if end is None else end - 1}"
        return None


def _step_faults(steps: Any) -> Iterator[str]:
    if not isinstance(steps, Sequence) or isinstance(steps, str) or not steps:
        given = "empty" if isinstance(steps, Sequence) and not steps else shown(steps)
        yield f"steps is {given}; give pairs such as [(0, 100)]"
        return
    for pair in cast("Sequence[Any]", steps):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(cast("Sequence[Any]", pair)) != 2:
            yield f"steps has {shown(pair)}; give pairs such as (0, 100)"
            continue
        first, end = cast("Sequence[Any]", pair)
        is_whole = is_number(first, is_whole=True) and (end is None or is_number(end, is_whole=True))
        if not is_whole or first < 0 or (end is not None and end <= first):
            yield (
                f"steps has {shown(pair)}; give a first step of 0 or more and a later end, or None as the end, "
                "in whole numbers"
            )


def _group_faults(groups: Any) -> Iterator[str]:
    if groups is None:
        return
    is_list = isinstance(groups, Sequence) and not isinstance(groups, str)
    if not is_list or not groups or not all(isinstance(one, str) for one in cast("Sequence[Any]", groups)):
        yield f"groups is {shown(groups)}; give names of groups in a list, or None for all"
