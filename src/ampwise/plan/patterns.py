"""Which modules a rule means: globs and regular expressions over the paths that ``named_modules`` gives."""

import re
from collections.abc import Iterator
from fnmatch import translate
from functools import cache
from typing import Final

REGEX: Final = "re:"
"""What a pattern starts with that is a regular expression; every other one is a glob."""
_ANYWHERE: Final = "*."


def is_match(pattern: str, module: str, *, root: str = "") -> bool:
    """Whether ``pattern`` means the module itself.

    A glob's ``*`` also spans dots, and ``*.`` at its beginning means any way down or none: ``*.attn`` is ``attn`` too.
    Either kind of pattern has to fit the whole path, with the root's name or without it.

    Args:
        pattern: ``layers.*.wo``, or a regular expression after ``re:``.
        module: the path below the root; empty for the root itself.
        root: what the root is called, where there are several.
    """
    fits = _compiled(pattern).fullmatch
    return bool(fits(module)) or (bool(root) and bool(fits(_joined(root, module))))


def covers(pattern: str, module: str, *, root: str = "") -> bool:
    """Whether ``pattern`` means the module or one that it is part of: a rule holds for all that runs in a module."""
    return any(is_match(pattern, one, root=root) for one in _upwards(module))


def mistake_in(pattern: str) -> str | None:
    """What is wrong with ``pattern``, if anything is."""
    if not pattern.removeprefix(REGEX).strip():
        return 'is empty; "*" means every module'
    try:
        _compiled(pattern)
    except re.error as error:
        return f"is not a regular expression: {error}"
    return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern.startswith(REGEX):
        return re.compile(pattern.removeprefix(REGEX))
    below = pattern.removeprefix(_ANYWHERE)
    return re.compile(translate(pattern) if below == pattern else rf"(?s:.*\.)?{translate(below)}")


def _upwards(module: str) -> Iterator[str]:
    """``a.b``, ``a`` and the root."""
    while module:
        yield module
        module = module.rpartition(".")[0]
    yield ""


def _joined(root: str, module: str) -> str:
    return f"{root}.{module}" if module else root
