"""What is assumed about conditions along a path: equal texts have equal answers until a name in them changes."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ampwise.lint.tree import dotted

Assumptions: TypeAlias = frozenset[tuple[str, bool]]
"""Texts of conditions, each with the answer this path has taken."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A condition that is not made of others, in a spelling shared by its variants."""

    text: str
    answer: bool
    """What it must be for the condition it stands in to hold."""


class Conditions:
    """Reads conditions, each once."""

    def __init__(self) -> None:
        self._atoms: dict[ast.expr, Atom] = {}
        self._places: dict[str, frozenset[str]] = {}
        self.mentioned: set[str] = set()
        """The places that the conditions met so far depend on."""

    def branches(self, test: ast.expr, assumed: Assumptions) -> Iterator[tuple[bool, Assumptions]]:
        """The answers ``test`` may have on a path with these assumptions, each with what is then assumed."""
        match test:
            case ast.Constant(value=value):
                yield bool(value), assumed
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                for answer, then in self.branches(inner, assumed):
                    yield not answer, then
            case ast.BoolOp(op=op, values=values):
                yield from self._combined(values, assumed, stops_at=isinstance(op, ast.Or))
            case _:
                yield from self._one(test, assumed)

    def _combined(
        self, values: list[ast.expr], assumed: Assumptions, *, stops_at: bool
    ) -> Iterator[tuple[bool, Assumptions]]:
        for answer, then in self.branches(values[0], assumed):
            if answer is stops_at or len(values) == 1:
                yield answer, then
            else:
                yield from self._combined(values[1:], then, stops_at=stops_at)

    def _one(self, test: ast.expr, assumed: Assumptions) -> Iterator[tuple[bool, Assumptions]]:
        one = self._atoms.get(test)
        if one is None:
            one = self._atoms[test] = atom(test)
            self._places[one.text] = places(test)
            self.mentioned |= self._places[one.text]
        for value in (True, False):
            if (one.text, not value) not in assumed:
                yield value is one.answer, assumed | {(one.text, value)}

    def places(self, text: str) -> frozenset[str]:
        """The places that the answer of a condition met so far depends on."""
        return self._places.get(text, frozenset())


def atom(test: ast.expr) -> Atom:
    """``x is not None`` is ``x``, ``a != b`` is not ``a == b``, ``x is True`` is ``x``."""
    match test:
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None | False)]):
            return Atom(ast.unparse(left), answer=False)
        case ast.Compare(left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None | False)]):
            return Atom(ast.unparse(left), answer=True)
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=True)]):
            return Atom(ast.unparse(left), answer=True)
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
            return Atom(f"{ast.unparse(left)} == {ast.unparse(right)}", answer=False)
        case ast.Compare(left=left, ops=[ast.NotIn()], comparators=[right]):
            return Atom(f"{ast.unparse(left)} in {ast.unparse(right)}", answer=False)
        case _:
            return Atom(ast.unparse(test), answer=True)


def places(test: ast.expr) -> frozenset[str]:
    """The names and dotted places that a condition's answer depends on."""
    found: set[str] = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and (name := dotted(node)):
            found.add(name)
    return frozenset(found)
