"""What ``ampwise explain`` says of a rule."""

import re
import textwrap
from collections.abc import Iterator

from ampwise._base.errors import UsageError
from ampwise._base.suggest import closest
from ampwise.records.finding import Example, Fixable, RuleInfo

_RULE_ID = re.compile(r"(?:MP|DR)\d{1,4}", re.IGNORECASE)
_WIDTH = 80
_FIXES = {
    Fixable.NO: "has no automatic fix",
    Fixable.SAFE: "fixed by lint --fix",
    Fixable.UNSAFE: "fixed by lint --fix --unsafe-fixes",
}


def find_rule(word: str) -> RuleInfo | None:
    """The rule of that id; None for a word that has not the form of one.

    Raises:
        UsageError: there is no such rule.
    """
    if not _RULE_ID.fullmatch(word.strip()):
        return None
    known = {info.id: info for info in _rules(word.strip()[:2].upper())}
    name = word.strip().upper()
    if name not in known:
        near = closest(name, [one.lower() for one in known])
        hint = f'; did you mean "{near.upper()}"?' if near else ""
        raise UsageError(f'"{name}" is no rule{hint} (rules: {", ".join(known)})')
    return known[name]


def rule_ids() -> list[str]:
    """The ids of all rules, lint's and the doctor's."""
    return [info.id for letters in ("MP", "DR") for info in _rules(letters)]


def _rules(letters: str) -> list[RuleInfo]:
    """What lint's or the doctor's rules say of themselves."""
    if letters == "DR":
        from ampwise.doctor.rule import all_rules as doctors_rules

        return [rule.info for rule in doctors_rules()]
    from ampwise.lint.rule import all_rules
    from ampwise.lint.unreadable import UNREADABLE

    return [UNREADABLE, *(rule.info for rule in all_rules())]


def rule_lines(info: RuleInfo) -> Iterator[str]:
    """A page on the rule: what, why, what to do, from where it is known, a bad and a good example."""
    yield f"{info.id}: {info.name} ({_summary(info)})"
    for name, text in (("why", info.why), ("do", info.remedy), ("evidence", info.evidence)):
        yield ""
        yield from textwrap.wrap(f"{name}: {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    for name, examples in (("bad", info.bad), ("good", info.good)):
        if examples:
            yield ""
            yield from _example(name, examples[0])


def _summary(info: RuleInfo) -> str:
    if info.id.startswith("DR"):
        return info.severity.value
    on = "on by default" if info.on_by_default else "off by default, on with lint --select ALL"
    return f"{info.severity.value}; {on}; {_FIXES[info.fixable]}"


def _example(name: str, example: Example) -> Iterator[str]:
    title = f" ({example.title})" if example.title else ""
    yield f"{name}{title}:"
    yield from textwrap.indent(textwrap.dedent(example.source).strip("\n"), "    ").splitlines()
