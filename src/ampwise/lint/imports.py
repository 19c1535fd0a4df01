"""Moves names of an import to another module, leaving the rest of the statement as it stands."""

import ast
import re

from ampwise.lint.text import SourceText
from ampwise.records.finding import Edit


def move_from_import(text: SourceText, statement: ast.ImportFrom, moved: set[str], module: str) -> Edit | None:
    """The edit by which ``from old import a, b`` imports the ``moved`` names from ``module``.

    All names: the module's name alone changes. Some: a second import follows, unless the statement spans lines or
    carries a comment within; then None.
    """
    stays = [alias for alias in statement.names if alias.name not in moved]
    goes = [alias for alias in statement.names if alias.name in moved]
    if not goes:
        return None
    segment = text.segment(statement)
    if not stays:
        head = re.match(r"from\s+([\w.]+)\s+import\b", segment)
        return _inside(text, statement, head, module) if head else None
    if statement.lineno != statement.end_lineno:
        return None
    line = text.line_bytes(statement.lineno)
    indent = line[: statement.col_offset].decode()
    if indent.strip() or line[statement.end_col_offset or 0 :].strip():
        return None
    old = f"from {statement.module} import {_spelt(stays)}"
    new = f"from {module} import {_spelt(goes)}"
    return Edit(start=text.start(statement), end=text.end(statement), text=f"{old}{text.newline}{indent}{new}")


def rename_import(text: SourceText, alias: ast.alias, module: str) -> Edit | None:
    """The edit by which ``import old as name`` imports ``module``; None where the old module binds its own name."""
    if alias.asname is None:
        return None
    start = text.offset(alias.lineno, alias.col_offset)
    return Edit(start=start, end=start + len(alias.name.encode()), text=module)


def _inside(text: SourceText, statement: ast.stmt, match: re.Match[str], new: str) -> Edit:
    start = text.start(statement) + len(match.string[: match.start(1)].encode())
    return Edit(start=start, end=start + len(match[1].encode()), text=new)


def _spelt(aliases: list[ast.alias]) -> str:
    return ", ".join(f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in aliases)
