"""Changes to a script's text: insertions, replacements and indentation, applied all at once."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ampwise.runner.placement.source import Source, inner_blocks

_AFTER, _BEFORE, _INDENT, _INLINE = range(4)


@dataclass(slots=True)
class Edits:
    """Collects changes to one source; positions are those of the unchanged text."""

    source: Source
    crowded: set[ast.stmt] = field(default_factory=set)
    """Statements that must have a line of their own before the changes can be applied."""
    _changes: list[tuple[int, int, int, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is any change."""
        return bool(self._changes)

    def replace(self, start: int, end: int, text: str) -> None:
        """Put ``text`` in the place of what stands between two offsets."""
        self._changes.append((start, _INLINE, end, text))

    def insert_before(self, statement: ast.stmt, *lines: str) -> None:
        """Put lines before ``statement``, at its indentation."""
        self._demand_own_line(statement)
        offset = self.source.line_start(_first_line(statement))
        self._insert(offset, _BEFORE, statement, lines)

    def insert_after(self, statement: ast.stmt, *lines: str) -> None:
        """Put lines after ``statement``, at its indentation."""
        self._demand_own_line(statement)
        offset = self.source.line_start((statement.end_lineno or statement.lineno) + 1)
        self._insert(offset, _AFTER, statement, lines)

    def wrap(self, statements: Sequence[ast.stmt], head: str) -> None:
        """Put consecutive statements under a line that opens a block."""
        for statement in statements:
            self._demand_own_line(statement)
        first, last = statements[0], statements[-1]
        self._insert(self.source.line_start(_first_line(first)), _BEFORE, first, (head,))
        keep = _continued_strings(statements)
        unit = indent_unit(self.source)
        for line in range(_first_line(first), (last.end_lineno or last.lineno) + 1):
            start, end = self.source.line_start(line), self.source.line_start(line + 1)
            if line not in keep and self.source.text[start:end].strip():
                self._changes.append((start, _INDENT, start, unit))

    def apply(self) -> str:
        """The changed text."""
        pieces: list[str] = []
        position = 0
        for start, _, end, text in sorted(self._changes, key=lambda change: change[:2]):
            pieces += [self.source.text[position:start], text]
            position = max(position, end)
        return "".join([*pieces, self.source.text[position:]])

    def _insert(self, offset: int, priority: int, like: ast.stmt, lines: Sequence[str]) -> None:
        indent, newline = self.source.indent_of(like), self.source.newline
        text = "".join(f"{indent}{line}{newline}" if line else newline for line in lines)
        if offset == len(self.source.text) and not self.source.text.endswith(("\n", "\r")):
            text = newline + text.removesuffix(newline)
        self._changes.append((offset, priority, offset, text))

    def _demand_own_line(self, statement: ast.stmt) -> None:
        if shares_line(self.source, statement):
            self.crowded.add(statement)


def shares_line(source: Source, statement: ast.stmt) -> bool:
    """Whether other code stands on the first or last line of ``statement``."""
    start, end = source.span(statement)
    before = source.text[source.line_start(_first_line(statement)) : start]
    after = source.text[end : source.line_start((statement.end_lineno or statement.lineno) + 1)].strip()
    decorated = _first_line(statement) != statement.lineno
    return bool((before.strip() and not decorated) or (after and not after.startswith("#")))


def unfold(source: Source, crowded: set[ast.stmt]) -> str:
    """The text with a line of its own for every statement on a line of one that is crowded."""
    edits = Edits(source)
    lines = {line for one in crowded for line in (one.lineno, one.end_lineno)}
    blocks = {id(block): block for block in map(source.block, crowded)}
    for block in blocks.values():
        _unfold_block(source, block, lines, edits)
    return edits.apply()


def _unfold_block(source: Source, block: list[ast.stmt], lines: set[int | None], edits: Edits) -> None:
    first, start = block[0], source.span(block[0])[0]
    before = source.text[source.line_start(first.lineno) : start]
    indent = before
    if before.strip():  # the block begins on the line of its header
        indent = before[: len(before) - len(before.lstrip())] + indent_unit(source)
        edits.replace(len(source.text[:start].rstrip(" \t")), start, source.newline + indent)
    for one, following in pairwise(block):
        if following.lineno == one.end_lineno and following.lineno in lines:
            edits.replace(source.span(one)[1], source.span(following)[0], source.newline + indent)


def indent_unit(source: Source) -> str:
    """By how much the script indents a block."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt):
            for block in inner_blocks(node):
                outer, inner = source.indent_of(node), source.indent_of(block[0])
                if not inner.strip() and inner.startswith(outer) and len(inner) > len(outer):
                    return inner[len(outer) :]
    return "    "


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _continued_strings(statements: Sequence[ast.stmt]) -> set[int]:
    """Lines that begin inside a string, where white space is part of the text."""
    lines: set[int] = set()
    for statement in statements:
        for node in ast.walk(statement):
            text = isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
            )
            if text and isinstance(node, ast.expr):
                lines.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return lines
