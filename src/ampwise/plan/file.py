"""Reads plans from TOML: what they include, and every mistake at once, each with its path and line."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from ampwise._base.errors import PlanError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise._base.version import __version__
from ampwise.plan.checks import quoted
from ampwise.plan.names import read_data
from ampwise.plan.plan import Plan, Rule, contradictions
from ampwise.plan.tables import ENUMS, HEAD_KEYS, RULES, head_mistakes, is_texts, rule_table_mistakes, type_in_words

VERSION: Final = 1
"""The version of plan files that is written, and the newest that is read."""

_MOST_BYTES: Final = 16 * 2**20
"""No plan is longer; /dev/zero is."""
_MOST_DEEP: Final = 32
"""How many files may lead to one another."""
_RULE_HEADER: Final = re.compile(rf"^[ \t]*\[\[[ \t]*{RULES}[ \t]*\]\]", re.MULTILINE)
_RULE_PATH: Final = re.compile(r"(?:^|(?<= and ))rules\[(\d+)\](?:\.\w+)?")


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a TOML file, with what it includes.

    Raises:
        PlanError: the file cannot be read, is no plan, is of a newer version, or has mistakes; all are named, those in
            the files it includes too.
    """
    reader = _Reader()
    return reader.plan(reader.file(Path(path), above=()))


def parse_plan(text: str, *, source: str = "the plan", folder: str | os.PathLike[str] = ".") -> Plan:
    """The plan that a TOML text holds.

    Args:
        text: what ``to_toml`` or a user wrote.
        source: what errors call it.
        folder: where the files that it includes are looked for.

    Raises:
        PlanError: as ``load_plan`` does.
    """
    reader = _Reader()
    return reader.plan(reader.text(text, source, folder=Path(folder), above=()))


def preset_plan(name: str) -> Plan:
    """The plan of the preset of that name, which has to be one."""
    reader = _Reader()
    return reader.plan(reader.preset(name, above=()))


@cache
def preset_rows() -> Mapping[str, Any]:
    """The presets, as ``presets.toml`` has them."""
    return read_data("presets.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What one file says, laid over what it includes."""

    heads: Mapping[str, Any]
    rules: tuple[Rule, ...]

    def over(self, lower: "_Layer") -> "_Layer":
        """Both together: its own keys stand, and its rules in the place of those that name the same place."""
        own = {rule.selector for rule in self.rules}
        kept = tuple(rule for rule in lower.rules if rule.selector not in own)
        return _Layer(heads={**lower.heads, **self.heads}, rules=(*kept, *self.rules))


_NOTHING: Final = _Layer(heads={}, rules=())


class _Reader:
    """Reads files and gathers what is wrong with them."""

    def __init__(self) -> None:
        self._refusals: list[str] = []
        self._mistakes: dict[str, list[str]] = {}
        self._read: dict[str, _Layer] = {}

    def plan(self, layer: _Layer) -> Plan:
        """The plan, unless anything was wrong."""
        if not self._refusals and "default" not in layer.heads and not self._lacks_includes():
            first = next(iter(self._mistakes))
            self._mistakes[first].append('default: is missing; write the format to compute in, as in default = "bf16"')
        complaints = [*self._refusals, *_in_words(self._mistakes)]
        if complaints:
            raise PlanError("\n".join(complaints))
        heads: dict[str, Any] = {**layer.heads}
        heads |= {key: enum(heads[key]) for key, enum in ENUMS.items() if key in heads}
        return Plan(**heads, rules=layer.rules)

    def file(self, path: Path, *, above: Sequence[str]) -> _Layer:
        """What a file says; ``above`` are the files that led to it."""
        source = inert_line(os.fspath(path))
        try:
            key = os.path.realpath(path)
        except (OSError, ValueError) as error:
            return self._refuse(source, _why_unreadable(error))
        if key not in self._read:  # files that include one another twice over would be read 2 ** depth times
            self._read[key] = self._file(path, source, above=(*above, key))
        return self._read[key]

    def _file(self, path: Path, source: str, *, above: Sequence[str]) -> _Layer:
        try:
            with path.open("rb") as file:
                read = file.read(_MOST_BYTES + 1)
            if len(read) > _MOST_BYTES:
                return self._refuse(source, f"is not a plan: it is longer than {_MOST_BYTES // 2**20} MiB")
            text = read.decode("utf-8-sig")  # Windows' editors write a byte order mark
        except UnicodeDecodeError as error:
            return self._refuse(source, f"is not a plan: it is not UTF-8 text (byte {error.start})")
        except (OSError, ValueError) as error:
            return self._refuse(source, _why_unreadable(error))
        return self.text(text, source, folder=path.parent, above=above)

    def text(self, text: str, source: str, *, folder: Path, above: Sequence[str]) -> _Layer:
        """What a text says."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            hint = "; it looks like JSON, and plans are TOML: ampwise plan show --toml t5 prints one"
            is_json = text.lstrip().startswith("{")
            return self._refuse(source, f"is not valid TOML: {inert_line(str(error))}{hint if is_json else ''}")
        except RecursionError:
            return self._refuse(source, "is not a plan: its values are nested too deeply")
        if not table:
            return self._refuse(source, 'is empty; a plan begins with version = 1 and, for one, default = "bf16"')
        lines = [text.count("\n", 0, header.start()) + 1 for header in _RULE_HEADER.finditer(text)]
        return self._table(table, source, lines=lines, folder=folder, above=above)

    def preset(self, name: str, *, above: Sequence[str]) -> _Layer:
        """What a preset says."""
        table = {"version": VERSION, **preset_rows()[name]["plan"]}
        return self._table(table, f'preset "{name}"', lines=(), folder=Path(), above=above)

    def _table(
        self, table: Mapping[str, Any], source: str, *, lines: Sequence[int], folder: Path, above: Sequence[str]
    ) -> _Layer:
        refusal = _version_refusal(table)
        if refusal is not None:
            return self._refuse(source, refusal)
        mistakes = self._mistakes.setdefault(source, [])
        mistakes[:] = head_mistakes(table)
        own = _Layer(
            heads={key: value for key, value in table.items() if key in HEAD_KEYS},
            rules=tuple(_read_rules(table.get(RULES, []), mistakes, lines)),
        )
        lower = _NOTHING
        for entry in table.get("include", []) if is_texts(table.get("include")) else []:
            lower = self._included(entry, mistakes, folder=folder, above=above).over(lower)
        return own.over(lower)

    def _included(self, entry: str, mistakes: list[str], *, folder: Path, above: Sequence[str]) -> _Layer:
        """What one entry of ``include`` says: a preset's name, or a file's path from the folder of the plan."""
        if entry in preset_rows():
            return self.preset(entry, above=above)
        path = folder / entry
        key = os.path.realpath(path)
        if key in above:
            way = " -> ".join(inert_line(Path(one).name) for one in (*above[above.index(key) :], key))
            mistakes.append(f"include: {quoted(entry)} leads back to itself: {way}")
            return _NOTHING
        if len(above) >= _MOST_DEEP:
            mistakes.append(f"include: {quoted(entry)} is more than {_MOST_DEEP} files deep")
            return _NOTHING
        if not entry.endswith(".toml"):
            wrong = not_one_of(inert_line(entry, max_length=60), preset_rows(), kind="preset")
            mistakes.append(f"include: {wrong}, nor a file that ends in .toml")
            return _NOTHING
        return self.file(path, above=above)

    def _lacks_includes(self) -> bool:
        """Whether something that was to be included was not, and may have had what is missing."""
        return any(one.startswith("include:") for found in self._mistakes.values() for one in found)

    def _refuse(self, source: str, why: str) -> _Layer:
        line = f"{source} {why}"
        if line not in self._refusals:
            self._refusals.append(line)
        return _NOTHING


def _read_rules(given: object, mistakes: list[str], lines: Sequence[int]) -> Iterator[Rule]:
    """The rules that are right; what is wrong with the others is added to ``mistakes``."""
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        mistakes.append(f"{RULES}: is {type_in_words(given)}; begin each rule with [[{RULES}]]")
        return
    right: list[tuple[int, Rule]] = []
    for index, table in enumerate(given):
        wrong = list(rule_table_mistakes(table, path=f"rules[{index}]"))
        if not wrong:
            right.append((index, Rule(**table)))
        mistakes.extend(wrong)
    mistakes.extend(contradictions(right))
    if len(lines) == len(given):
        mistakes[:] = [_RULE_PATH.sub(lambda path: f"{path[0]} (line {lines[int(path[1])]})", one) for one in mistakes]
    yield from (rule for _, rule in right)


def _version_refusal(table: Mapping[str, Any]) -> str | None:
    """Why a file of its version cannot be read; None where it can."""
    version = table.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        rules = table.get(RULES)
        is_below = isinstance(rules, list) and any("version" in rule for rule in rules if isinstance(rule, dict))
        none = f"has its version below a [[{RULES}]], as a key of that rule" if is_below else "has no version"
        said = none if version is None else f"is of version {inert_line(repr(version), max_length=40)}"
        return f"{said}; a plan begins with: version = {VERSION}"
    if version > VERSION:
        return (
            f"is a plan of version {version}; this ampwise ({__version__}) reads versions up to {VERSION}: "
            "upgrade it with: pip install --upgrade ampwise"
        )
    return None


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist; write a plan to begin with by: ampwise plan show --toml fp16-safe > plan.toml"
    if isinstance(error, IsADirectoryError):
        return "is a folder; name a plan file in it"
    return f"cannot be read: {inert_line(str(getattr(error, 'strerror', None) or error))}"


def _in_words(mistakes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for source, wrong in mistakes.items():
        if wrong:
            yield f"{source}: {'1 mistake' if len(wrong) == 1 else f'{len(wrong)} mistakes'}"
            yield from (f"  {line}" for line in wrong)
