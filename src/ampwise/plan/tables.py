"""What is wrong with the tables of a plan file: keys that are none, values of the wrong type, then what they say."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, Final, TypeGuard

from ampwise._base.suggest import closest, not_one_of
from ampwise._base.text import inert_line
from ampwise.plan.checks import plan_mistakes, quoted, rule_mistakes
from ampwise.plan.plan import Lists, Plan, Rule, Updates

RULES: Final = "rule"
"""The key of the rules: each is a ``[[rule]]``."""
RULE_KEYS: Final = tuple(field.name for field in fields(Rule))
HEAD_KEYS: Final = tuple(field.name for field in fields(Plan) if field.name != "rules")
"""Every key of a plan that is neither its version, its rules nor what it includes."""

ENUMS: Final[Mapping[str, type[StrEnum]]] = {"lists": Lists, "updates": Updates}
"""Keys whose values are words of a closed set."""

_KEYS: Final = ("version", "include", *HEAD_KEYS, RULES)


def head_mistakes(table: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a plan's own keys."""
    yield from _unknown(table, _KEYS, dot="", kind="plan")
    if "include" in table and not is_texts(table["include"]):
        yield 'include: is not a list of texts; write it as in include = ["fp16-safe", "base.toml"]'
    heads = {key: value for key, value in table.items() if key in HEAD_KEYS}
    yield from _not_text(heads, dot="")
    texts = {key: value for key, value in heads.items() if isinstance(value, str)}
    for key, enum in ENUMS.items():
        if key in texts and texts[key] not in {one.value for one in enum}:
            word = inert_line(texts.pop(key), max_length=60)
            yield f"{key}: {not_one_of(word, [one.value for one in enum], kind=f'value of {key}')}"
    yield from plan_mistakes(texts)


def rule_table_mistakes(table: Mapping[str, Any], *, path: str) -> Iterator[str]:
    """What is wrong with one ``[[rule]]``."""
    misplaced = [key for key in table if key in _KEYS and key not in RULE_KEYS]
    for key in misplaced:
        yield f"{path}.{key}: is a key of the plan, and has come to stand in a rule; put it above the first [[{RULES}]]"
    others = {key: value for key, value in table.items() if key not in misplaced}
    yield from _unknown(others, RULE_KEYS, dot=f"{path}.", kind="rule")
    yield from _not_text({key: value for key, value in table.items() if key in RULE_KEYS}, dot=f"{path}.")
    if "compute" not in table:
        yield f"{path}.compute: is missing; write the format to compute in"
    texts = {key: value for key, value in table.items() if key in RULE_KEYS and isinstance(value, str)}
    yield from rule_mistakes(texts, path=path, is_placed="module" in table or "op" in table)


def is_texts(value: object) -> TypeGuard[list[str]]:
    """Whether it is a list of nothing but texts."""
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def type_in_words(value: object) -> str:
    """What type a value read from TOML has."""
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case dict():
            return "a table"
        case str():
            return "a text"
        case _:
            return "a date or time"


def _unknown(table: Mapping[str, Any], known: Iterable[str], *, dot: str, kind: str) -> Iterator[str]:
    for key in table:
        if key not in known:
            near = closest(key, known)
            hint = f'; did you mean "{near}"?' if near else ""
            yield f"{dot}{inert_line(key, max_length=60)}: is not a key of a {kind}{hint} (one of: {', '.join(known)})"


def _not_text(table: Mapping[str, Any], *, dot: str) -> Iterator[str]:
    for key, value in table.items():
        if not isinstance(value, str):
            example = f" and in quotes: {key} = {quoted(str(value))}" if isinstance(value, (int, float)) else ""
            yield f"{dot}{key}: is {type_in_words(value)}; write one text{example}"
