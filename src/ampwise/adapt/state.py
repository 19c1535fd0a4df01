"""Which groups of modules are to be in the safer format, as a value that readings move."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from ampwise.adapt.options import Range, settled
from ampwise.adapt.reading import Reading, Verdict
from ampwise.adapt.triggers import Trigger
from ampwise.runtime.scaling.scale_numbers import refuse

_MOST_DOUBLINGS = 6
_NUM_PORTIONS = 4
"""Groups that went up together come down in so many portions."""
_TRIAL = 10
"""In so many steps, or the cool-down if that is longer, a move shows what it does before others follow from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When groups move, whatever the trigger.

    Args:
        quiet: a group moves down after so many steps in a row in which every trigger was calm; twice as many each time
            that it has to go up again within as many steps.
        cool_down: so many steps after a group moved, only lost numbers move it.
        hysteresis: a trigger is calm below this share of what it fires at.
        max_switches: a group moves so often at most; its last move is up.
    """

    quiet: int = 25
    cool_down: int = 10
    hysteresis: float = 0.5
    max_switches: int = 20

    def __post_init__(self) -> None:
        whole = {"quiet": 1, "cool_down": 0, "max_switches": 1}
        ranges = {name: Range(is_whole=True, least=least) for name, least in whole.items()}
        refuse(settled(self, {**ranges, "hysteresis": Range(above=0.0, most=1.0)}), "PrecisionScheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """What one group is to do."""

    is_raised: bool = False
    cause: str = ""
    """Of its last move."""
    num_steps: int = 0
    """Since it moved; it never has where ``num_switches`` is 0."""
    num_quiet: int = 0
    """Steps in a row in which every trigger was calm."""
    num_switches: int = 0
    num_doublings: int = 0
    """How often its quiet period was doubled."""
    num_together: int = 1
    """How many groups its last rise moved, itself included."""
    is_blamed: bool = False
    """Its last rise was for what all groups together showed when it had just come down."""

    def counted(self, group: int, verdicts: Sequence[Verdict], policy: Policy) -> Self:
        """The state after a step that triggers judged so, as long as it does not move."""
        is_calm = all(verdict.level(group) < policy.hysteresis for verdict in verdicts)
        num_quiet = self.num_quiet + 1 if self.is_raised and is_calm else 0
        return replace(self, num_steps=self.num_steps + 1, num_quiet=num_quiet)

    def is_recent(self, num_steps: int) -> bool:
        """Whether it moved within the last steps."""
        return self.num_switches > 0 and self.num_steps <= num_steps

    def rises(self, group: int, verdicts: tuple[Verdict, ...], policy: Policy) -> Verdict | None:
        """What moves it up, if anything does."""
        if self.is_raised:
            return None
        is_held = self.is_recent(policy.cool_down)
        firing = (one for one in verdicts if one.level(group) >= 1.0 and (one.is_urgent or not is_held))
        return next(firing, None)

    def is_due(self, policy: Policy) -> bool:
        """Whether its quiet period is over, as long as it may come up again."""
        is_quiet = self.is_raised and self.num_quiet >= self._patience(policy) and self.num_steps > policy.cool_down
        return is_quiet and self.num_switches + 2 <= policy.max_switches

    def raised_for(self, cause: str, policy: Policy, *, num_together: int = 1, is_blamed: bool = False) -> Self:
        """Up."""
        is_soon = self.is_recent(self._patience(policy))
        num_doublings = min(self.num_doublings + 1, _MOST_DOUBLINGS) if is_soon else 0
        stays = self.num_switches + 3 > policy.max_switches
        return replace(
            self,
            is_raised=True,
            cause=f"{cause}; it stays, for max_switches" if stays else cause,
            num_steps=0,
            num_quiet=0,
            num_switches=self.num_switches + 1,
            num_doublings=num_doublings,
            num_together=num_together,
            is_blamed=is_blamed,
        )

    def lowered(self) -> Self:
        """Down."""
        return replace(
            self,
            is_raised=False,
            cause=f"quiet for {self.num_quiet} steps",
            num_steps=0,
            num_quiet=0,
            num_switches=self.num_switches + 1,
        )

    def _patience(self, policy: Policy) -> int:
        return policy.quiet * 2**self.num_doublings


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What the triggers have seen, and what that means for each group.

    Law: ``observe`` gives a new state and leaves the old one as it was.
    """

    policy: Policy
    triggers: tuple[Trigger, ...]
    groups: tuple[GroupState, ...]

    @property
    def raised(self) -> frozenset[int]:
        """The groups that are to be in the safer format."""
        return frozenset(place for place, one in enumerate(self.groups) if one.is_raised)

    def observe(self, reading: Reading) -> Self:
        """The state after a step that showed this."""
        verdicts = tuple(one.judge(reading) for one in self.triggers)
        groups = self._counted(verdicts)
        rising, blamed = _rising(groups, verdicts, self.policy)
        falling = _falling(groups, verdicts, self.policy)
        num_shared = sum(why.is_shared for why in rising.values())

        def moved(place: int, one: GroupState) -> GroupState:
            if place in falling:
                return one.lowered()
            why = rising.get(place)
            if why is None:
                return one
            num_together = num_shared if why.is_shared else 1
            is_blamed = place in blamed
            cause = f"{why.cause(place)}; it had just come down" if is_blamed else why.cause(place)
            return one.raised_for(cause, self.policy, num_together=num_together, is_blamed=is_blamed)

        return replace(
            self,
            triggers=tuple(one.observe(reading) for one in self.triggers),
            groups=tuple(moved(place, one) for place, one in enumerate(groups)),
        )

    def _counted(self, verdicts: tuple[Verdict, ...]) -> tuple[GroupState, ...]:
        """The groups a step later. What a group on trial does to all together is held against no other one."""
        is_tried = bool(_on_trial(self.groups, self.policy)) or _is_shown(self.groups, self.policy)
        judged = [one for one in verdicts if not (is_tried and _waits(one))]
        loud = any(one.level(0) >= self.policy.hysteresis for one in verdicts if is_tried and _waits(one))
        counted = tuple(one.counted(place, judged, self.policy) for place, one in enumerate(self.groups))
        if not loud:
            return counted
        stays = (min(one.num_quiet, before.num_quiet) for one, before in zip(counted, self.groups, strict=True))
        return tuple(replace(one, num_quiet=num) for one, num in zip(counted, stays, strict=True))


def _trial(policy: Policy) -> int:
    return max(_TRIAL, policy.cool_down)


def _waits(verdict: Verdict) -> bool:
    """Whether it does not tell which group is to blame, and there is time to find out."""
    return verdict.is_shared and not verdict.is_urgent


def _on_trial(groups: Sequence[GroupState], policy: Policy) -> set[int]:
    """The groups that came down last, and lately: to blame for what all together show."""
    limit = 2 * _trial(policy)
    down = {place: one.num_steps for place, one in enumerate(groups) if not one.is_raised and one.is_recent(limit)}
    return {place for place, num_steps in down.items() if num_steps == min(down.values())}


def _is_shown(groups: Sequence[GroupState], policy: Policy) -> bool:
    """Whether the rise of a group that was blamed has yet to show what it does."""
    return any(one.is_raised and one.is_blamed and one.is_recent(_trial(policy)) for one in groups)


def _rising(
    groups: Sequence[GroupState], verdicts: tuple[Verdict, ...], policy: Policy
) -> tuple[dict[int, Verdict], set[int]]:
    """The groups that go up now, each with what moves it; and those of them that are blamed.

    What is seen of all groups together, such as a loss, does not tell which is to blame. If some came down just before
    it, they are; until their rise has shown what it does, no others go up for it. Where numbers are lost, nobody waits.
    """
    suspects, is_shown = _on_trial(groups, policy), _is_shown(groups, policy)
    moving = {place: why for place, one in enumerate(groups) if (why := one.rises(place, verdicts, policy)) is not None}
    waiting = {place for place, why in moving.items() if _waits(why)}
    blamed = set[int]() if is_shown else suspects & waiting
    held = waiting - blamed if is_shown or suspects else set[int]()
    return {place: why for place, why in moving.items() if place not in held}, blamed


def _falling(groups: Sequence[GroupState], verdicts: tuple[Verdict, ...], policy: Policy) -> set[int]:
    """The groups that go down now: those that went up together a portion at a time, so that the one to blame shows."""
    if any(one.is_shared and one.level(0) >= policy.hysteresis for one in verdicts):
        return set()
    due = [place for place, one in enumerate(groups) if one.is_due(policy)]
    together = [place for place in due if groups[place].num_together > 1]
    is_recent = any(not one.is_raised and one.num_together > 1 and one.is_recent(_trial(policy)) for one in groups)
    waits = is_recent or _is_shown(groups, policy)
    portion = math.ceil(max((groups[place].num_together for place in together), default=0) / _NUM_PORTIONS)
    return {*due} - {*together[0 if waits else portion :]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Combinations:
    """Which groups are in the safer format together: of all combinations there can be, only a few are used.

    Each one is a graph of its own where the whole model is compiled. Law: every group that is wanted up is up; no more
    than ``limit`` combinations are ever used.
    """

    num_groups: int
    limit: int
    used: tuple[tuple[int, ...], ...] = ((),)
    current: tuple[int, ...] = ()

    def entered(self, wanted: frozenset[int]) -> Self:
        """The combination for these groups: they alone as long as there is room, else with as few more as can be."""
        exact, all_up = tuple(sorted(wanted)), tuple(range(self.num_groups))
        if exact in self.used:
            return replace(self, current=exact)
        num_kept_free = 0 if all_up in (exact, *self.used) else 1
        if len(self.used) + num_kept_free < self.limit:
            return replace(self, used=(*self.used, exact), current=exact)
        wider = [one for one in self.used if wanted <= set(one)]
        if wider:
            return replace(self, current=min(wider, key=len))
        return replace(self, used=(*self.used, all_up), current=all_up)
