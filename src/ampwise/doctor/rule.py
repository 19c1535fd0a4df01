"""What a rule of doctor is, and where all of them are found."""

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from ampwise.doctor.case import Case
from ampwise.records.finding import Finding, RuleInfo


def _nothing(_: Case) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: what it says about itself, the question it asks of a case, and what speaks for a healthy one.

    Laws: ``check`` depends on the case alone, and is silent where the section it reads was not recorded. Each finding
    states its evidence in figures. ``reassure`` speaks only of what was recorded, and only where ``check`` is silent.
    """

    info: RuleInfo
    check: Callable[[Case], Iterator[Finding]]
    reassure: Callable[[Case], Iterator[str]] = _nothing
    """Why the case is believed free of it: one sentence with its figures."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule in ``doctor/rules``, ordered by id."""
    from ampwise.doctor import rules

    names = sorted(info.name for info in pkgutil.iter_modules(rules.__path__) if info.name.startswith("dr"))
    return tuple(import_module(f"ampwise.doctor.rules.{name}").RULE for name in names)
