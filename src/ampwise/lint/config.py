"""What is looked for and where: ``[tool.ampwise.lint]`` in pyproject.toml and the command line's options."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from ampwise._base.errors import UsageError
from ampwise._base.suggest import closest
from ampwise._base.text import inert_line
from ampwise.records.finding import RuleInfo

_TABLE: Final = "tool.ampwise.lint"
_ALL: Final = "ALL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One run's settings; codes are rule ids or their beginnings (``MP1``), or ALL."""

    select: tuple[str, ...] = ()
    """Empty: what is on by default."""
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Globs, each with the codes that are ignored in files it matches."""
    exclude: tuple[str, ...] = ()
    """Globs of files and folders that are left out."""
    target_torch: tuple[int, int] | None = None
    root: Path | None = None
    """The folder of the pyproject.toml that globs start from."""

    def selects(self, info: RuleInfo) -> bool:
        """Whether a rule is on: the longest code that fits it decides, ``ignore`` where both are as long."""
        chosen = _longest(info.id, (*self.select, *self.extend_select))
        if chosen is None and not (info.on_by_default and not self.select):
            return False
        ignored = _longest(info.id, self.ignore)
        return ignored is None or (chosen is not None and chosen > ignored)

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """The codes that ``per-file-ignores`` takes out in a file."""
        return tuple(code for glob, codes in self.per_file_ignores if self.matches(path, glob) for code in codes)

    def is_excluded(self, path: str) -> bool:
        """Whether ``exclude`` leaves a file or folder out."""
        return any(self.matches(path, glob) for glob in self.exclude)

    def matches(self, path: str, glob: str) -> bool:
        """Whether a glob fits the path from the root, the file's name, or a folder on the way."""
        folder, name = os.path.split(path)
        shown = Path(os.path.realpath(folder), name)
        try:
            inner = shown.relative_to(self.root or Path.cwd())
        except ValueError:
            inner = shown
        ways = [inner, *list(inner.parents)[:-1]]
        pattern = glob.rstrip("/")
        return any(fnmatch(way.as_posix(), pattern) or fnmatch(way.name, pattern) for way in ways)


def fits(rule: str, codes: Iterable[str]) -> bool:
    """Whether one of the codes names the rule."""
    return _longest(rule, codes) is not None


def _longest(rule: str, codes: Iterable[str]) -> int | None:
    lengths = [0 if code == _ALL else len(code) for code in codes if code == _ALL or rule.startswith(code)]
    return max(lengths, default=None)


def find_config(paths: Sequence[str], known: Sequence[str]) -> Config:
    """The settings in the nearest pyproject.toml at or above all of ``paths`` that has the table; else the defaults.

    Raises:
        UsageError: the file is damaged or has wrong entries, all named at once.
    """
    absolute = [os.path.realpath(path) for path in paths] or [str(Path.cwd())]
    try:
        common = Path(os.path.commonpath(absolute))
    except ValueError:
        common = Path.cwd()
    for folder in (common, *common.parents):
        file = folder / "pyproject.toml"
        if file.is_file() and (table := _table(file)) is not None:
            return parse_config(table, known, source=str(file), root=folder)
    return Config()


def _table(file: Path) -> Mapping[str, Any] | None:
    import tomllib

    try:
        document: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError:
        return None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid TOML: {inert_line(str(error))}") from error
    for word in _TABLE.split("."):
        document = document.get(word) if isinstance(document, dict) else None
    if document is not None and not isinstance(document, dict):
        raise UsageError(f"{file}: {_TABLE} is no table; write [{_TABLE}] and entries below it")
    return document


def parse_config(table: Mapping[str, Any], known: Sequence[str], *, source: str, root: Path | None = None) -> Config:
    """The settings in a table.

    Args:
        table: the entries below ``[tool.ampwise.lint]``.
        known: the ids of all rules.
        source: what errors call the file.
        root: the folder that globs start from.

    Raises:
        UsageError: some entries are wrong; all are named, each with its path.
    """
    reader = _Reader(known)
    values: dict[str, Any] = {}
    for key, given in table.items():
        read = reader.readers.get(key)
        if read is None:
            near = closest(key, reader.readers)
            hint = f'; did you mean "{near}"?' if near else ""
            reader.wrong(key, f"is not a setting{hint} (one of: {', '.join(reader.readers)})")
        else:
            values[key.replace("-", "_")] = read(key, given)
    if reader.mistakes:
        count = "1 entry is" if len(reader.mistakes) == 1 else f"{len(reader.mistakes)} entries are"
        raise UsageError("\n".join([f"{source}: {count} wrong", *reader.mistakes]))
    return Config(**values, root=root)


class _Reader:
    """Reads entries and gathers what is wrong with them."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known
        self.mistakes: list[str] = []
        self.readers: dict[str, Callable[[str, object], Any]] = {
            "select": self.codes,
            "extend-select": self.codes,
            "ignore": self.codes,
            "per-file-ignores": self.per_file,
            "exclude": self.words,
            "target-torch": self.release,
        }

    def wrong(self, key: str, what: str) -> None:
        """Note a mistake."""
        self.mistakes.append(f"  {_TABLE}.{inert_line(key, max_length=80)}: {what}")

    def words(self, key: str, given: object) -> tuple[str, ...]:
        """A list of strings."""
        if isinstance(given, list) and all(isinstance(word, str) for word in given):
            return tuple(given)
        self.wrong(key, f"{inert_line(repr(given), max_length=60)} is not a list of strings")
        return ()

    def codes(self, key: str, given: object) -> tuple[str, ...]:
        """A list of rule ids or beginnings of them."""
        codes = tuple(word.upper() for word in self.words(key, given))
        for number, code in enumerate(codes):
            if (mistake := unknown_code(code, self._known)) is not None:
                self.wrong(f"{key}[{number}]", mistake)
        return codes

    def per_file(self, key: str, given: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """A table from globs to lists of codes."""
        if not isinstance(given, dict):
            self.wrong(key, f'{inert_line(repr(given), max_length=60)} is not a table as in {{"tests/*" = ["MP4"]}}')
            return ()
        return tuple((glob, self.codes(f'{key}."{glob}"', codes)) for glob, codes in given.items())

    def release(self, key: str, given: object) -> tuple[int, int] | None:
        """A release of torch."""
        release = parse_release(given) if isinstance(given, str) else None
        if release is None:
            self.wrong(key, f'{inert_line(repr(given), max_length=60)} is not a torch release; write it as in "2.4"')
        return release


def parse_release(text: str) -> tuple[int, int] | None:
    """``"2.4"`` or ``"2.4.1"`` as ``(2, 4)``; None where it is no release."""
    match = re.fullmatch(r"\s*(\d{1,3})\.(\d{1,3})(\.\w+)*\s*", text)
    return (int(match[1]), int(match[2])) if match else None


def unknown_code(code: str, known: Sequence[str]) -> str | None:
    """What is wrong with a code that names no rule; None for one that does."""
    if code == _ALL or (code and any(rule.startswith(code) for rule in known)):
        return None
    near = closest(code, [word.lower() for word in (*known, _ALL)])
    hint = f'; did you mean "{near.upper()}"?' if near else ""
    shown = inert_line(code, max_length=40)
    return f'"{shown}" is no rule{hint} (ids are {known[0]} to {known[-1]}, beginnings as in MP1, or ALL)'


def parse_codes(given: Iterable[str], known: Sequence[str], *, option: str) -> tuple[str, ...]:
    """The codes in the values of a command line option, split at commas.

    Raises:
        UsageError: some name no rule; all are named.
    """
    codes = tuple(_split(given))
    mistakes = [mistake for code in codes if (mistake := unknown_code(code, known)) is not None]
    if mistakes:
        raise UsageError("\n".join(f"{option}: {mistake}" for mistake in mistakes))
    return codes


def _split(given: Iterable[str]) -> Iterator[str]:
    for value in given:
        yield from (code.upper() for code in re.split(r"[\s,]+", value) if code)
