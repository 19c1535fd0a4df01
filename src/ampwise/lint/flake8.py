"""The rules as a flake8 plugin: ``flake8`` then reports MP codes beside its own."""

import ast
from collections.abc import Iterator

from ampwise._base.version import __version__
from ampwise.lint.engine import check_text
from ampwise.lint.rule import all_rules
from ampwise.lint.text import SourceText


class Plugin:
    """What flake8 makes for each file; its own ``select``, ``ignore`` and ``noqa`` decide what is shown."""

    name = "ampwise"
    version = __version__

    def __init__(self, tree: ast.AST, filename: str, lines: list[str]) -> None:
        self._filename = filename
        self._text = SourceText("".join(lines).encode(), encoding="utf-8")
        del tree  # flake8 hands plugins its tree; ours carries positions of its own

    def run(self) -> Iterator[tuple[int, int, str, type["Plugin"]]]:
        """Line, column from 0, message and plugin for each finding of the rules that are on by default."""
        for finding in check_text(self._filename, self._text, [r for r in all_rules() if r.info.on_by_default]):
            if finding.place is not None:
                message = f"{finding.rule} {finding.message}"
                yield finding.place.line, finding.place.column - 1, message, type(self)
