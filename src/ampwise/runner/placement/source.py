"""A parsed script: its tree with parents, and where each node stands in the text."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One script's text and tree."""

    text: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(repr=False)
    line_starts: tuple[int, ...] = field(repr=False)
    newline: str

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that holds ``node``."""
        return self.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """All that hold ``node``, innermost first."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that ``node`` is or belongs to."""
        return next(one for one in (node, *self.ancestors(node)) if isinstance(one, ast.stmt))

    def outer_statement(self, statement: ast.stmt) -> ast.stmt | None:
        """The compound statement that ``statement`` stands in."""
        return next((one for one in self.ancestors(statement) if isinstance(one, ast.stmt)), None)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which ``statement`` stands."""
        holder = self.parents[statement]
        return next(block for block in blocks(holder) if any(one is statement for one in block))

    def scope(self, node: ast.AST) -> Function | ast.Module:
        """The function that holds ``node``, else the module."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((one for one in self.ancestors(node) if isinstance(one, kinds)), self.tree)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class that holds ``node``."""
        return next((one for one in self.ancestors(node) if isinstance(one, ast.ClassDef)), None)

    def loop(self, node: ast.AST) -> Loop | None:
        """The innermost loop around ``node`` in the same function."""
        for one in self.ancestors(node):
            if isinstance(one, ast.For | ast.AsyncFor | ast.While):
                return one
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                return None
        return None

    def offset(self, line: int, column: int) -> int:
        """Where in the text the tree's (line, column in UTF-8 bytes) is."""
        start = self.line_starts[line - 1]
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        return start + len(self.text[start:end].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where ``node`` begins and ends in the text."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.offset(node.lineno, node.col_offset), self.offset(end_line, end_column)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """How ``node`` is written."""
        start, end = self.span(node)
        return self.text[start:end]

    def line_start(self, line: int) -> int:
        """Where a line begins; the line after the last begins at the end."""
        return self.line_starts[line - 1] if line <= len(self.line_starts) else len(self.text)

    def indent_of(self, statement: ast.stmt) -> str:
        """The white space before a statement that stands first on its line."""
        start = self.line_start(statement.lineno)
        return self.text[start : self.span(statement)[0]]


def parse(text: str, *, filename: str) -> Source:
    """The tree of a script.

    Raises:
        SyntaxError: as Python would.
    """
    tree = ast.parse(text, filename)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    ends = [match.end() for match in _LINE_END.finditer(text)]
    starts = (0, *(end for end in ends if end < len(text)))
    found = _LINE_END.search(text)
    return Source(text=text, tree=tree, parents=parents, line_starts=starts, newline=found[0] if found else "\n")


def blocks(holder: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements directly in a compound statement, handler or case."""
    for _, value in ast.iter_fields(holder):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value


def inner_blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a compound statement, its handlers and cases included."""
    yield from blocks(statement)
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from blocks(child)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def walk_here(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and all that runs when it runs: not the bodies of what it merely defines."""
    yield node
    if not isinstance(node, _DEFINITIONS):
        for child in ast.iter_child_nodes(node):
            yield from walk_here(child)


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """The calls that running ``node`` makes itself."""
    return (one for one in walk_here(node) if isinstance(one, ast.Call))


def dotted(node: ast.AST) -> str | None:
    """``self.net`` as written; a subscript is what it is taken from; None for what is no chain of names."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            base = dotted(value)
            return f"{base}.{attr}" if base else None
        case ast.Subscript(value=value):
            return dotted(value)
        case _:
            return None


def last_part(name: str) -> str:
    """``net`` of ``self.net``."""
    return name.rpartition(".")[2]


def plain_targets(target: ast.expr) -> Iterator[str]:
    """The bare names that an assignment to ``target`` binds."""
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                yield from plain_targets(element)
        case _:
            pass


def arguments(function: Function, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The parameters of ``function`` with what ``call`` gives for them."""
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if parameters[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        parameters = parameters[1:]
    yield from zip(parameters, call.args, strict=False)
    yield from ((word.arg, word.value) for word in call.keywords if word.arg)
