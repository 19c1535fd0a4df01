"""Which groups are in the safer format in a step, and why: by a trigger, by a schedule, or with others."""

from dataclasses import dataclass, replace
from typing import Self

from ampwise.adapt.schedule import Schedule
from ampwise.adapt.state import Combinations, SchedulerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Where the groups are."""

    names: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    combinations: Combinations

    @property
    def raised(self) -> frozenset[int]:
        """The groups in the safer format."""
        return frozenset(self.combinations.current)

    def at(self, step: int, state: SchedulerState) -> Self:
        """Where the groups are in a step before which the triggers saw so much."""
        scheduled = {place for place in range(len(self.names)) if self._scheduled(place, step)}
        return replace(self, combinations=self.combinations.entered(state.raised | scheduled))

    def resumed(self, combinations: Combinations) -> Self:
        """Where the groups were."""
        return replace(self, combinations=combinations)

    def cause(self, place: int, step: int, state: SchedulerState) -> str:
        """Why the group is where it is."""
        if place not in self.raised:
            return state.groups[place].cause or self._end(place)
        scheduled = self._scheduled(place, step)
        if scheduled is not None:
            return scheduled
        if place in state.raised:
            return state.groups[place].cause
        return f"with the others: at most {self.combinations.limit} combinations are used"

    def _end(self, place: int) -> str:
        """Why a group is down that no trigger ever moved."""
        is_scheduled = any(one.groups is None or self.names[place] in one.groups for one in self.schedules)
        return "the schedule's end" if is_scheduled else "the others that it went with are down"

    def _scheduled(self, place: int, step: int) -> str | None:
        causes = (one.cause(step, self.names[place]) for one in self.schedules)
        return next((cause for cause in causes if cause is not None), None)
