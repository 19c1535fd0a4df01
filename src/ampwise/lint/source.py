"""One file as the rules see it: text, tree, names, kinds, flow, loops, and the way to report and mend."""

import ast
import re
import warnings
from functools import cached_property
from typing import Final

from ampwise.lint.edits import Editor, Positioned
from ampwise.lint.flow import Flow
from ampwise.lint.guards import Framework, frameworks
from ampwise.lint.kinds import Kinds
from ampwise.lint.loops import Loops
from ampwise.lint.names import Names
from ampwise.lint.regions import Regions
from ampwise.lint.text import SourceText
from ampwise.lint.tree import Tree
from ampwise.records.finding import Edit, Finding, Fix, Place, RuleInfo, Severity

_NOQA: Final = re.compile(r"#\s*noqa(?!\w)(?:\s*:\s*(?P<codes>[A-Z]+[0-9]*(?:[\s,]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)


class SourceFile:
    """A parsed file; everything beyond the tree is worked out on first use.

    Args:
        path: what findings call the file.
        text: its text.
        target_torch: the oldest torch release the code must run on, as ``(2, 4)``; None for the newest.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the text does not parse.
    """

    def __init__(self, path: str, text: SourceText, *, target_torch: tuple[int, int] | None = None) -> None:
        self.path = path
        self.text = text
        self.target_torch = target_torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's own, on odd escapes in the user's strings
            self._root = ast.parse(text.text)

    @cached_property
    def tree(self) -> Tree:
        """The syntax tree."""
        return Tree(self._root)

    @cached_property
    def names(self) -> Names:
        """What names stand for."""
        return Names(self.tree)

    @cached_property
    def kinds(self) -> Kinds:
        """What kind of thing expressions are."""
        return Kinds(self.tree, self.names)

    @cached_property
    def regions(self) -> Regions:
        """Which code runs under autocast."""
        return Regions(self.tree, self.names)

    @cached_property
    def flow(self) -> Flow:
        """The events of the training protocol and the paths between them."""
        return Flow(self.tree, self.names, self.kinds)

    @cached_property
    def loops(self) -> Loops:
        """Which loops train, and what runs in every iteration."""
        return Loops(self.tree, self.names, self.flow)

    @cached_property
    def edit(self) -> Editor:
        """Makes the edits of a fix."""
        return Editor(self.text, self.tree, self.names)

    @cached_property
    def frameworks(self) -> frozenset[Framework]:
        """The frameworks that own the training of this file."""
        return frameworks(self.tree, self.names)

    def supports(self, release: tuple[int, int]) -> bool:
        """Whether the code may use what torch ``release`` brought."""
        return self.target_torch is None or self.target_torch >= release

    def place(self, node: Positioned) -> Place:
        """Where ``node`` stands."""
        end_line = node.end_lineno or node.lineno
        return Place(
            path=self.path,
            line=node.lineno,
            column=self.text.column(node.lineno, node.col_offset),
            end_line=end_line,
            end_column=self.text.column(end_line, node.end_col_offset or node.col_offset),
        )

    def finding(
        self,
        info: RuleInfo,
        node: Positioned,
        message: str,
        *,
        severity: Severity | None = None,
        fix: Fix | None = None,
        group: str | None = None,
    ) -> Finding:
        """A finding of the rule ``info`` at ``node``."""
        return Finding(
            rule=info.id,
            severity=severity or info.severity,
            message=message,
            place=self.place(node),
            remedy=info.remedy,
            fix=fix,
            group=group,
        )

    def is_silenced(self, finding: Finding) -> bool:
        """Whether a ``# noqa`` on the first or last line of what was found names the rule, or all."""
        if finding.place is None:
            return False
        lines = {finding.place.line, finding.place.end_line} & self._lines_with_noqa
        return any(_silences(comment, finding.rule) for line in lines if (comment := self._comments.get(line)))

    @cached_property
    def _lines_with_noqa(self) -> set[int]:
        return {self.text.line_at(match.start()) for match in re.finditer(rb"noqa", self.text.data, re.IGNORECASE)}

    @cached_property
    def _comments(self) -> dict[int, str]:
        return self.text.comments()


def fix(*edits: Edit | None, safe: bool) -> Fix | None:
    """A fix of these edits; None where one of them cannot be made."""
    made = [edit for edit in edits if edit is not None]
    return Fix(edits=tuple(made), is_safe=safe) if made and len(made) == len(edits) else None


def _silences(comment: str, rule: str) -> bool:
    match = _NOQA.search(comment)
    if match is None:
        return False
    codes = match["codes"]
    return codes is None or any(rule.startswith(code.upper()) for code in re.split(r"[\s,]+", codes) if code)
