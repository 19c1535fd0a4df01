"""Which groups of modules are to be in the safer format, as a value that readings move."""

from dataclasses import dataclass, replace
from typing import Self

from ampwise.adapt.options import Range, settled
from ampwise.adapt.reading import Reading, Verdict
from ampwise.adapt.triggers import Trigger
from ampwise.runtime.scaling.scale_numbers import refuse

_MOST_DOUBLINGS = 6


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

    def after(self, group: int, verdicts: tuple[Verdict, ...], policy: Policy) -> Self:
        """The state after a step that triggers judged so."""
        one = replace(self, num_steps=self.num_steps + 1)
        levels = [verdict.level(group) for verdict in verdicts]
        is_calm = all(level < policy.hysteresis for level in levels)
        if self.is_raised:
            return replace(one, num_quiet=self.num_quiet + 1 if is_calm else 0).lowered_if_due(policy)
        firing = [verdict for verdict, level in zip(verdicts, levels, strict=True) if level >= 1.0]
        if self.num_switches and one.num_steps <= policy.cool_down:
            firing = [verdict for verdict in firing if verdict.is_urgent]
        return one.raised_for(firing[0].cause(group), policy) if firing else one

    def raised_for(self, cause: str, policy: Policy) -> Self:
        """Up."""
        is_soon = self.num_switches > 0 and self.num_steps <= self._patience(policy)
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
        )

    def lowered_if_due(self, policy: Policy) -> Self:
        """Down after the quiet period, as long as it may come up again."""
        patience = self._patience(policy)
        is_due = self.num_quiet >= patience and self.num_steps > policy.cool_down
        if not is_due or self.num_switches + 2 > policy.max_switches:
            return self
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
        return replace(
            self,
            triggers=tuple(one.observe(reading) for one in self.triggers),
            groups=tuple(one.after(place, verdicts, self.policy) for place, one in enumerate(self.groups)),
        )


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
