"""What a rule of lint is, and where all of them are found."""

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from ampwise.lint.guards import Framework
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Finding, RuleInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: what it says about itself, and the function that looks at one file.

    Law: ``check`` depends on the file alone, changes nothing, and never raises whatever parses.
    """

    info: RuleInfo
    check: Callable[[SourceFile], Iterator[Finding]]
    words: tuple[str, ...] = ()
    """The file is looked at only if its text holds at least one of these; empty for always. Keeps lint fast."""
    off_under: frozenset[Framework] = frozenset()
    """Frameworks that take over what the rule watches: a file that uses one is not looked at."""

    def applies_to(self, file: SourceFile) -> bool:
        """Whether the rule has anything to say about a file with these words and frameworks."""
        if self.words and not any(map(file.text.holds, self.words)):
            return False
        return not (self.off_under and self.off_under & file.frameworks)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule in ``lint/rules``, ordered by id."""
    from ampwise.lint import rules

    names = sorted(info.name for info in pkgutil.iter_modules(rules.__path__) if info.name.startswith("mp"))
    return tuple(import_module(f"ampwise.lint.rules.{name}").RULE for name in names)
