"""Makes the edits of a fix: replace, insert, delete, dedent, import."""

import ast
import io
import tokenize

from ampwise.lint.names import Bound, Names
from ampwise.lint.text import SourceText
from ampwise.lint.tree import Tree
from ampwise.records.finding import Edit

Positioned = ast.stmt | ast.expr | ast.keyword | ast.arg


class Editor:
    """Edits of one file's source, as byte ranges of its UTF-8 text."""

    def __init__(self, text: SourceText, tree: Tree, names: Names) -> None:
        self._text = text
        self._tree = tree
        self._names = names

    def replace(self, node: Positioned, text: str) -> Edit:
        """Put ``text`` in the place of ``node``."""
        return Edit(start=self._text.start(node), end=self._text.end(node), text=text)

    def insert(self, offset: int, text: str) -> Edit:
        """Put ``text`` at the byte ``offset``."""
        return Edit(start=offset, end=offset, text=text)

    def insert_before(self, statement: ast.stmt, line: str) -> Edit | None:
        """Put a line of code before ``statement`` in its block; None where that has no line of its own."""
        start = self._begin(statement)
        indent = self._indent(start)
        return None if indent is None else self.insert(start, f"{line}{self._text.newline}{indent}")

    def insert_after(self, statement: ast.stmt, line: str) -> Edit | None:
        """Put a line of code after ``statement`` in its block; None where that has no line of its own."""
        indent, rest = self._indent(self._begin(statement)), self._rest(statement)
        if indent is None or not _is_comment(rest):
            return None
        stop = self._text.end(statement) + len(rest.rstrip(b"\r\n"))
        return self.insert(stop, f"{self._text.newline}{indent}{line}")

    def delete(self, statement: ast.stmt) -> Edit | None:
        """Take ``statement`` and its line away, ``pass`` staying in an empty block; None if it shares the line."""
        start, end, rest = self._begin(statement), self._text.end(statement), self._rest(statement)
        indent = self._indent(start)
        if indent is None or not _is_comment(rest):
            return None
        if len(self._tree.block(statement)) == 1:
            return Edit(start=start, end=end, text="pass")
        return Edit(start=start - len(indent.encode()), end=end + len(rest), text="")

    def _begin(self, statement: ast.stmt) -> int:
        """The first byte of ``statement`` with its decorators."""
        decorators = getattr(statement, "decorator_list", [])
        if not decorators:
            return self._text.start(statement)
        line = self._text.line_bytes(decorators[0].lineno)
        return self._text.offset(decorators[0].lineno, len(line) - len(line.lstrip()))

    def _rest(self, statement: ast.stmt) -> bytes:
        """What stands behind ``statement`` on its last line."""
        return self._text.line_bytes(statement.end_lineno or statement.lineno)[statement.end_col_offset or 0 :]

    def dedent(self, statements: list[ast.stmt], levels_from: ast.stmt) -> tuple[Edit, ...]:
        """Move ``statements`` left to where ``levels_from`` stands; empty where a line cannot be moved."""
        first = self._text.line_at(self._begin(statements[0]))
        last = statements[-1].end_lineno or statements[-1].lineno
        inner = self._indent(self._begin(statements[0]))
        outer = self._indent(self._begin(levels_from))
        if inner is None or outer is None or not inner.startswith(outer):
            return ()
        cut = len(inner.encode()) - len(outer.encode())
        strings = self._string_lines()
        edits: list[Edit] = []
        for number in range(first, last + 1):
            line = self._text.line_bytes(number)
            if not line.strip() or number in strings:
                continue
            if line[:cut].strip():
                continue  # a comment or the rest of an expression that stands further left
            start = self._text.line_starts[number - 1] + len(outer.encode())
            edits.append(Edit(start=start, end=start + cut, text=""))
        return tuple(edits)

    def _string_lines(self) -> set[int]:
        """Lines that begin inside a string."""
        found: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self._text.text).readline):
            if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
                found.update(range(token.start[0] + 1, token.end[0] + 1))
        return found

    def _indent(self, start: int) -> str | None:
        """The white space before ``start`` on its line; None where something else stands there."""
        line_start = self._text.line_starts[self._text.line_at(start) - 1]
        before = self._text.data[line_start:start].decode()
        return before if not before.strip() else None

    def import_module(self, module: str, user: ast.expr) -> tuple[str, tuple[Edit, ...]] | None:
        """The text by which ``user``'s scope can name ``module``, and the edits that make that so.

        ``import torch as T`` gives ``("T", ())``. None where the name is taken by something else.
        """
        for statement in self._tree.nodes(ast.Import):
            for alias in statement.names:
                if alias.name == module and self._tree.parent(statement) is self._tree.root:
                    name = alias.asname or alias.name
                    if self._is_visible(name.partition(".")[0], user):
                        return name, ()
        if not self._is_free(module.partition(".")[0], user):
            return None
        place = self._first_import()
        if place is None:
            return None
        edit = self.insert_before(place, f"import {module}")
        return (module, (edit,)) if edit is not None else None

    def _is_visible(self, name: str, user: ast.expr) -> bool:
        found = self._names.visible(name, user)
        return bool(found) and all(binding.how is Bound.IMPORT for binding in found)

    def _is_free(self, name: str, user: ast.expr) -> bool:
        return not self._names.visible(name, user) and not self._names.of(self._tree.root, name)

    def _first_import(self) -> ast.stmt | None:
        """The first import at module level that is not from ``__future__``."""
        for statement in self._tree.root.body:
            if isinstance(statement, ast.Import):
                return statement
            if isinstance(statement, ast.ImportFrom) and statement.module != "__future__":
                return statement
        return None


def _is_comment(rest: bytes) -> bool:
    """Whether a line ends with nothing or a comment."""
    return not rest.strip() or rest.strip().startswith(b"#")
