"""Reads a notebook's code cells as one text, with IPython's own lines masked, and writes fixes back by cell."""

import ast
import json
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ampwise.lint.text import SourceText
from ampwise.lint.unreadable import not_checked, unparsable
from ampwise.records.finding import Finding, Place

_PYTHON_MAGICS: Final = frozenset("time timeit capture prun python python3 pypy py".split())
_MAGIC: Final = re.compile(r"\s*([%!]|\?{1,2}\w)|\s*[\w.]+\?{1,2}\s*$|\s*[\w, ]+=\s*[%!]\w")
_CELL: Final = "#ampwise-cell:"
_LINE: Final = "#ampwise-line:"
_MASKED: Final = re.compile(rf"(?m)^[ \t]*(?:pass)?{_LINE}(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    number: int
    """From 1, over all cells."""
    source: str
    first_line: int
    """The line of the text that holds the cell's first."""


class NotANotebookError(ValueError):
    """The file is no notebook with Python in it; the text says why."""


class Notebook:
    """A notebook as one text: every code cell in order, each behind a marker line.

    Args:
        path: what findings call it.
        raw: the file's bytes.

    Raises:
        NotANotebookError: it is damaged or of an old format.
    """

    def __init__(self, path: str, raw: bytes) -> None:
        self._path = path
        self._document, self._original = _parse(raw)
        self._hidden: list[str] = []
        self._cells: list[_Cell] = []
        self.problems: list[Finding] = []
        """Cells that are not Python, one finding each."""
        self.text = SourceText("".join(self._lines()).encode(), encoding="utf-8")

    # ---- to one text

    def _lines(self) -> Iterator[str]:
        line = 1
        for number, cell in enumerate(self._document["cells"], start=1):
            source = _source(cell)
            if source is None or not _is_code(cell):
                continue
            shown = self._masked(number, source)
            self._cells.append(_Cell(number=number, source=source, first_line=line + 1))
            text = f"{_CELL}{number}\n{shown}\n"
            line += text.count("\n")
            yield text

    def _masked(self, number: int, source: str) -> str:
        """The cell's text as Python: IPython's lines, or the whole cell, give way to markers."""
        source = source.replace("\r\n", "\n").replace("\r", "\n").replace("\f", " ")
        if _error(source) is None and _LINE not in source and _CELL not in source:
            return source
        lines = source.split("\n")
        magic = re.match(r"%%(\w+)", source)
        if magic is not None and magic[1] not in _PYTHON_MAGICS:
            return "\n".join(map(self._hide, lines))
        shown = "\n".join(self._hidden_magics(lines))
        error = _error(shown)
        if error is None:
            return shown
        self.problems.append(unparsable(self._path, error, cell=number))
        return "\n".join(map(self._hide, lines))

    def _hidden_magics(self, lines: list[str]) -> Iterator[str]:
        goes_on = False
        for line in lines:
            is_magic = goes_on or _MAGIC.match(line) is not None or _LINE in line or _CELL in line
            yield self._hide(line, "" if goes_on else "pass") if is_magic else line
            goes_on = is_magic and line.endswith("\\")

    def _hide(self, line: str, statement: str = "") -> str:
        """A marker for ``line``: a comment, behind a statement where a block may need one."""
        self._hidden.append(line)
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        return f"{indent if statement else ''}{statement}{_LINE}{len(self._hidden) - 1}"

    # ---- back

    def place(self, place: Place) -> Place:
        """A place of the text as a place of the notebook."""
        starts = [cell.first_line for cell in self._cells]
        found = bisect_right(starts, place.line) - 1
        if found < 0:
            return place
        cell = self._cells[found]
        before = cell.first_line - 1
        end_line = max(place.end_line - before, place.line - before)
        return replace(place, cell=cell.number, line=place.line - before, end_line=end_line)

    def with_text(self, text: SourceText) -> bytes:
        """The notebook's file with the cells of an edited text; what did not change keeps its form."""
        pieces = re.split(rf"(?m)^{_CELL}(\d+)\n", text.text)
        document = json.loads(json.dumps(self._document))
        for number, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            cell = document["cells"][int(number) - 1]
            source = _MASKED.sub(lambda match: self._hidden[int(match[1])], piece.removesuffix("\n"))
            if source != _source(cell):
                cell["source"] = source.splitlines(keepends=True) if isinstance(cell["source"], list) else source
        return _written(document, self._document, self._original)


def _parse(raw: bytes) -> tuple[dict[str, Any], str]:
    try:
        text = raw.decode("utf-8-sig")
        document = json.loads(text)
    except UnicodeDecodeError as error:
        raise NotANotebookError(f"it is not UTF-8 text (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise NotANotebookError(f"it is not JSON: {error}") from error
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise NotANotebookError("it holds no list of cells; only notebooks of format 4 are read")
    if _language(document) not in {None, "python", "ipython"}:
        document = {**document, "cells": []}
    return document, text


def _language(document: dict[str, Any]) -> str | None:
    metadata = document.get("metadata")
    info = metadata.get("language_info") if isinstance(metadata, dict) else None
    name = info.get("name") if isinstance(info, dict) else None
    return name.lower() if isinstance(name, str) else None


def _is_code(cell: dict[str, Any]) -> bool:
    return cell.get("cell_type") == "code"


def _source(cell: dict[str, Any]) -> str | None:
    source = cell.get("source")
    if isinstance(source, list):
        return "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else None


def _error(source: str) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error
    return None


def _written(document: dict[str, Any], before: dict[str, Any], original: str) -> bytes:
    """JSON in the form the file had: its indent, its escapes, its last newline."""
    for indent in (1, 2, 4, None, 0):
        for ascii_only in (False, True):
            if json.dumps(before, indent=indent, ensure_ascii=ascii_only) == original.rstrip("\n"):
                return _dumped(document, original, indent=indent, ascii_only=ascii_only)
    return _dumped(document, original, indent=1, ascii_only=False)


def _dumped(document: dict[str, Any], original: str, *, indent: int | None, ascii_only: bool) -> bytes:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    return (text + "\n" * original.endswith("\n")).encode("utf-8", "surrogatepass")


def damaged(path: str, error: NotANotebookError) -> Finding:
    """The finding for a file that is no notebook."""
    return not_checked(path, str(error))
