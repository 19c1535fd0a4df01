"""What all walks through a file share: its events, conditions, assignments and jumps."""

import ast

from ampwise.lint.conditions import Conditions
from ampwise.lint.events import Events
from ampwise.lint.names import Names
from ampwise.lint.tree import FUNCTIONS, LOOPS, Tree, dotted


class Ground:
    """The file under a walk; what is read off it is kept for the next walk."""

    def __init__(self, tree: Tree, names: Names, events: Events) -> None:
        self.names = names
        self.events = events
        self.conditions = Conditions()
        self._stored: dict[ast.stmt, frozenset[str]] = {}
        self._jumping = _jumping(tree)

    def jumps(self, statement: ast.stmt) -> bool:
        """Whether a path may leave ``statement`` by another way than its end."""
        return statement in self._jumping

    def stored(self, statement: ast.stmt) -> frozenset[str]:
        """The names and dotted places that get new values anywhere in ``statement``."""
        known = self._stored.get(statement)
        if known is None:
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                known = frozenset({statement.name})
            else:
                known = frozenset(name for node in ast.walk(statement) if (name := _target(node)) is not None)
            self._stored[statement] = known
        return known


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


def _target(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return dotted(node)
    return None
