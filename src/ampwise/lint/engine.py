"""Looks at files with rules: finds the files, reads them, collects findings, mends."""

from collections.abc import Sequence
from typing import Final

from ampwise.lint.fix import apply_fixes
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.lint.text import SourceText
from ampwise.records.finding import Finding

MAX_ROUNDS: Final = 20
"""A fix may make the next one possible; so many rounds are more than any file needs."""


def check_text(
    path: str, text: SourceText, rules: Sequence[Rule], *, target_torch: tuple[int, int] | None = None
) -> list[Finding]:
    """What the rules find in one text, in source order, without what ``# noqa`` silences.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the text does not parse.
    """
    file = SourceFile(path, text, target_torch=target_torch)
    found = [finding for rule in rules if rule.applies_to(file) for finding in rule.check(file)]
    unique = {(one.rule, one.place, one.message): one for one in found if not file.is_silenced(one)}
    return sorted(unique.values(), key=_order)


def fix_text(
    path: str,
    text: SourceText,
    rules: Sequence[Rule],
    *,
    allow_unsafe: bool,
    target_torch: tuple[int, int] | None = None,
) -> tuple[SourceText, list[Finding], list[Finding]]:
    """The text after all fixes, what was put right, and what is left.

    Law: fixing the result again changes nothing.
    """
    done: list[Finding] = []
    for _ in range(MAX_ROUNDS):
        left = check_text(path, text, rules, target_torch=target_torch)
        fixed = apply_fixes(text, left, allow_unsafe=allow_unsafe)
        if not fixed.done or fixed.data == text.data:
            return text, done, left
        done.extend(fixed.done)
        text = text.edited(fixed.data)
    return text, done, check_text(path, text, rules, target_torch=target_torch)


def _order(finding: Finding) -> tuple[int, int, int, str]:
    place = finding.place
    return (place.cell or 0, place.line, place.column, finding.rule) if place is not None else (0, 0, 0, finding.rule)
