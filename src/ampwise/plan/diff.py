"""How two plans differ, as data."""

from dataclasses import dataclass

from ampwise.plan.plan import Plan, Rule
from ampwise.plan.tables import HEAD_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """A key of the plans that differs."""

    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChange:
    """A rule that names the same place in both plans and is not the same."""

    before: Rule
    after: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """What has to change in one plan to make the other of it."""

    keys: tuple[KeyChange, ...]
    removed: tuple[Rule, ...]
    added: tuple[Rule, ...]
    changed: tuple[RuleChange, ...]
    is_reordered: bool
    """Whether the rules that both have stand in another order, so that another of them may be the last that holds."""

    @property
    def is_empty(self) -> bool:
        """Whether the plans decide the same, for the same reasons."""
        return not (self.keys or self.removed or self.added or self.changed or self.is_reordered)


def diff(before: Plan, after: Plan) -> PlanDiff:
    """How ``after`` differs from ``before``; rules are paired by the place that they name, in any spelling."""
    old = {rule.selector: rule for rule in before.rules}
    new = {rule.selector: rule for rule in after.rules}
    return PlanDiff(
        keys=tuple(_key_changes(before, after)),
        removed=tuple(rule for selector, rule in old.items() if selector not in new),
        added=tuple(rule for selector, rule in new.items() if selector not in old),
        changed=tuple(
            RuleChange(before=old[selector], after=rule)
            for selector, rule in new.items()
            if selector in old and (old[selector].wanted, old[selector].because) != (rule.wanted, rule.because)
        ),
        is_reordered=[one for one in old if one in new] != [one for one in new if one in old],
    )


def _key_changes(before: Plan, after: Plan) -> list[KeyChange]:
    pairs = [(key, getattr(before, key), getattr(after, key)) for key in HEAD_KEYS]
    return [KeyChange(key=key, before=old, after=new) for key, old, new in pairs if old != new]
