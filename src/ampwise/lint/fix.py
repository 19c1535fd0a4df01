"""Applies fixes to a file's text: edits that do not overlap, and nothing changed outside them."""

import ast
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ampwise.lint.text import SourceText
from ampwise.records.finding import Edit, Finding

_SAME_SIZE: Final = (ast.Name, ast.Constant, ast.Attribute, ast.arg, ast.keyword, ast.alias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A text after one round of fixes."""

    data: bytes
    """UTF-8."""
    done: tuple[Finding, ...]
    """The findings put right; the others wait for the next round."""


def apply_fixes(text: SourceText, findings: Iterable[Finding], *, allow_unsafe: bool) -> Fixed:
    """Make the fixes that do not get in each other's way, in source order.

    Law: the result parses, and every name, constant and argument outside the edits is still there, unchanged; a fix
    that breaks this is left out.
    """
    chosen = list(_compatible(findings, allow_unsafe=allow_unsafe))
    data = _checked(text, _edits(chosen))
    if data is not None:
        return Fixed(data=data, done=tuple(chosen))
    # one of them is at fault: add them one by one
    kept: list[Finding] = []
    result = text.data
    for finding in chosen:
        data = _checked(text, _edits([*kept, finding]))
        if data is not None:
            kept.append(finding)
            result = data
    return Fixed(data=result, done=tuple(kept))


def _compatible(findings: Iterable[Finding], *, allow_unsafe: bool) -> Iterator[Finding]:
    """Those whose edits overlap no earlier one's; equal edits (the same import) are shared."""
    taken: list[Edit] = []
    for finding in findings:
        if finding.fix is None or not (finding.fix.is_safe or allow_unsafe):
            continue
        new = [edit for edit in finding.fix.edits if edit not in taken]
        if not any(_collide(edit, other) for edit in new for other in taken):
            taken.extend(new)
            yield finding


def _collide(one: Edit, other: Edit) -> bool:
    if one.start == one.end == other.start == other.end:
        return True
    return one.start < other.end and other.start < one.end


def _edits(findings: list[Finding]) -> list[Edit]:
    unique = {edit: None for finding in findings if finding.fix is not None for edit in finding.fix.edits}
    return sorted(unique, key=lambda edit: (edit.start, edit.end))


def splice(data: bytes, edits: list[Edit]) -> bytes:
    """``data`` with sorted, non-overlapping edits made."""
    parts: list[bytes] = []
    position = 0
    for edit in edits:
        parts += [data[position : edit.start], edit.text.encode()]
        position = edit.end
    return b"".join([*parts, data[position:]])


def _checked(text: SourceText, edits: list[Edit]) -> bytes | None:
    """The edited bytes; None where they do not parse or something outside of the edits changed."""
    data = splice(text.data, edits)
    if not edits:
        return data
    try:
        after = text.edited(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            new = _anchors(after, ast.parse(after.text))
            old = _anchors(text, ast.parse(text.text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    shifts = _Shifts(edits)
    moved = {
        (kind, shifts.moved(start), shifts.moved_end(end), what)
        for kind, start, end, what in old
        if shifts.is_outside(start, end)
    }
    return data if moved <= new else None


def _anchors(text: SourceText, tree: ast.Module) -> set[tuple[str, int, int, str]]:
    """The small parts of a tree with where they stand."""
    return {
        (type(node).__name__, text.start(node), text.end(node), _says(node))  # pyright: ignore[reportArgumentType]  # aliases have positions too
        for node in ast.walk(tree)
        if isinstance(node, _SAME_SIZE)
    }


def _says(node: ast.AST) -> str:
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.alias(name=word):
            return word
        case ast.keyword(arg=word):
            return word or ""
        case ast.Constant(value=value):
            return repr(value)
        case _:
            return ""


class _Shifts:
    """Where bytes outside of the edits end up."""

    def __init__(self, edits: list[Edit]) -> None:
        self._edits = edits
        self._starts = [edit.start for edit in edits]
        self._grown = [0]
        for edit in edits:
            self._grown.append(self._grown[-1] + len(edit.text.encode()) - (edit.end - edit.start))

    def is_outside(self, start: int, end: int) -> bool:
        """Whether no edit touches the stretch."""
        first = bisect_right(self._starts, start)
        before = self._edits[first - 1] if first else None
        if before is not None and before.end > start:
            return False
        return first >= len(self._edits) or self._starts[first] >= end

    def moved(self, position: int) -> int:
        """The new position of a byte that no edit touches."""
        number = bisect_right(self._starts, position)
        return position + self._grown[number]

    def moved_end(self, position: int) -> int:
        """The new end of a stretch that no edit touches; what is inserted right behind it leaves it."""
        number = bisect_left(self._starts, position)
        return position + self._grown[number]
