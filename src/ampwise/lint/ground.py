"""What all walks through a file share: its events, conditions, assignments and jumps."""

import ast
from collections.abc import Collection
from functools import cached_property
from typing import Final

from ampwise.lint.conditions import Conditions
from ampwise.lint.events import Events
from ampwise.lint.names import Names
from ampwise.lint.tree import FUNCTIONS, LOOPS, Tree, dotted

_NOTHING: Final = frozenset[str]()


class Ground:
    """The file under a walk; what is read off it is kept for the next walk."""

    def __init__(self, tree: Tree, names: Names, events: Events) -> None:
        self.names = names
        self.events = events
        self.conditions = Conditions()
        self._tree = tree
        self._jumping = _jumping(tree)

    def jumps(self, statement: ast.stmt) -> bool:
        """Whether a path may leave ``statement`` by another way than its end."""
        return statement in self._jumping

    def holding(self, nodes: Collection[ast.expr] | None) -> set[ast.AST]:
        """The statements in which the event of one of ``nodes`` happens, of any event for None; no defs, no classes."""
        found: set[ast.AST] = set()
        for node in (event.node for event in self.events.all) if nodes is None else nodes:
            scope = self._tree.scope(node)
            for outer in self._tree.ancestors(node):
                if outer is scope or outer in found:
                    break
                if isinstance(outer, ast.stmt) and not isinstance(outer, (*FUNCTIONS, ast.ClassDef)):
                    found.add(outer)
        return found

    def stored(self, statement: ast.stmt) -> frozenset[str]:
        """The names and dotted places that get new values anywhere in ``statement``."""
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            return frozenset({statement.name})
        return self._stored.get(statement, _NOTHING)

    @cached_property
    def _stored(self) -> dict[ast.AST, frozenset[str]]:
        found: dict[ast.AST, set[str]] = {}
        for node in self._tree.nodes(ast.Name, ast.Attribute, ast.Subscript):
            if isinstance(node.ctx, ast.Load) or (name := dotted(node)) is None:
                continue
            for outer in self._tree.ancestors(node):
                if isinstance(outer, ast.stmt):
                    found.setdefault(outer, set()).add(name)
        return {statement: frozenset(names) for statement, names in found.items()}


def _jumping(tree: Tree) -> set[ast.AST]:
    """The statements that hold a return or raise, or a break or continue of a loop around them."""
    found: set[ast.AST] = set()
    for jump in tree.nodes(ast.Return, ast.Raise, ast.Break, ast.Continue):
        found.add(jump)
        for outer in tree.ancestors(jump):
            is_own_loop = isinstance(outer, LOOPS) and isinstance(jump, ast.Break | ast.Continue)
            if is_own_loop or isinstance(outer, (*FUNCTIONS, ast.Lambda)):
                break
            found.add(outer)
    return found
