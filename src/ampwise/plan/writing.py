"""Writes plans as TOML; the comments and the spacing of a file that is rewritten are kept."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ampwise._base.files import write_atomically
from ampwise._base.text import inert_line
from ampwise.plan.file import VERSION
from ampwise.plan.operators import cast_lists
from ampwise.plan.plan import Plan, Rule
from ampwise.plan.tables import HEAD_KEYS, RULE_KEYS, RULES

_ALWAYS: Final = ("default", "lists")
"""Keys that a written plan has even where they say what would hold without them."""
_FACT: Final = "#: "
"""How a comment begins that tells of the plan as it was written."""
_FACTS: Final = re.compile(rf"^{_FACT}.*\n", re.MULTILINE)
_HEADED: Final = re.compile(rf"(?:^[ \t]*#.*\n)*^[ \t]*\[\[[ \t]*{RULES}[ \t]*\]\]", re.MULTILINE)
"""Where a rule begins: at the comments right above its header."""


def pinned(plan: Plan) -> Plan:
    """The plan with the cast lists of the installed torch named in it, so that an upgrade changes nothing silently."""
    return plan if plan.torch is not None else replace(plan, torch=cast_lists().torch_version)


def to_toml(plan: Plan) -> str:
    """The plan as the text of a file, from which ``parse_plan`` makes an equal plan."""
    return "\n".join([_edited("", _heads(plan)), *(_rule_text(rule) for rule in plan.rules)])


def rule_to_toml(rule: Rule) -> str:
    """The rule alone, as it stands in a plan file."""
    return _rule_text(rule)


def update_toml(text: str, plan: Plan) -> str:
    """The text of a plan file, changed to hold ``plan``.

    A rule keeps the text of the one that named the same place, with the comments right above it and within it. What
    the file included is written out, since ``plan`` holds it.

    Raises:
        ValueError: ``text`` is not TOML.
    """
    tables = tomllib.loads(text).get(RULES, [])
    starts = [found.start() for found in _HEADED.finditer(text)]
    if len(starts) != len(tables):  # rules as an inline array, or a header within a text of several lines
        return to_toml(plan)
    cuts = [*starts, len(text)]
    texts = (text[start:end] for start, end in pairwise(cuts))
    old = {_place(table): rule_text for table, rule_text in zip(tables, texts, strict=True)}
    head = _edited(text[: cuts[0]], _heads(plan))
    blocks = [head, *(_rule_text(rule, old.get(_place(_said(rule, RULE_KEYS)), "")) for rule in plan.rules)]
    return "\n".join(f"{block.rstrip()}\n" for block in blocks if block)


def save_plan(plan: Plan, path: str | os.PathLike[str], *, facts: Sequence[str] = ()) -> None:
    """Write the plan to ``path``, whole or not at all; a plan that is there already keeps its comments.

    Args:
        plan: The plan.
        path: The file.
        facts: What is known of the plan: comments at its beginning, in the place of those that an earlier call wrote.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        text = update_toml(_FACTS.sub("", Path(path).read_bytes().decode()), plan)
    except (OSError, ValueError):
        text = to_toml(plan)
    write_atomically(path, "".join(f"{_FACT}{inert_line(fact, max_length=400)}\n" for fact in facts) + text)


def _heads(plan: Plan) -> dict[str, object]:
    """The keys of a plan file that are not its rules; None where a key is to be left out."""
    standard = Plan(default=plan.default)
    said = _said(plan, HEAD_KEYS)
    kept = {key: said[key] if key in _ALWAYS or said[key] != getattr(standard, key) else None for key in HEAD_KEYS}
    return {"version": VERSION, "include": None, **kept}


def _said(value: Plan | Rule, keys: tuple[str, ...]) -> dict[str, str | None]:
    return {key: None if (said := getattr(value, key)) is None else str(said) for key in keys}


def _rule_text(rule: Rule, old: str = "") -> str:
    return _edited(old or f"[[{RULES}]]\n", _said(rule, RULE_KEYS), within=RULES)


def _edited(text: str, wanted: Mapping[str, object], *, within: str | None = None) -> str:
    """The TOML text with the keys that are wanted; those that are None or unknown are left out."""
    import tomlkit

    document = tomlkit.parse(text)
    table: Any = document if within is None else document[within][0]
    for key in [key for key in table if wanted.get(key) is None]:
        del table[key]
    for key, value in wanted.items():
        if value is not None and table.get(key) != value:
            table[key] = value
    return tomlkit.dumps(document)


def _place(table: Mapping[str, Any]) -> tuple[Any, Any]:
    return table.get("module"), table.get("op")
