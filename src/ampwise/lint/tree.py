"""A syntax tree walked once: parents, nodes by type, and the statements, functions and loops around a node."""

import ast
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar, cast, overload

Node = TypeVar("Node", bound=ast.AST)
Other = TypeVar("Other", bound=ast.AST)
Third = TypeVar("Third", bound=ast.AST)
Fourth = TypeVar("Fourth", bound=ast.AST)
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Scope: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While

FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES: Final = (*FUNCTIONS, ast.Lambda, ast.ClassDef, ast.Module)
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_BORING: Final = frozenset({"ctx", "op", "ops", "kind", "type_comment", "type_ignores", "lineno"})


def _classes(base: type[ast.AST]) -> Iterator[type[ast.AST]]:
    for child in base.__subclasses__():
        yield child
        yield from _classes(child)


_FIELDS: Final[dict[type[ast.AST], tuple[str, ...]]] = {
    cls: tuple(field for field in cls.__match_args__ if field not in _BORING)
    for cls in _classes(ast.AST)
    if cls not in {ast.Name, ast.Constant, ast.Pass}
}


class Tree:
    """A parsed module and what surrounds each of its nodes."""

    def __init__(self, root: ast.Module) -> None:
        self.root = root
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self._order: list[ast.AST] = []
        self._scopes: dict[ast.AST, Scope] = {}
        self._numbers_of: dict[type[ast.AST], list[int]] = {}
        self._index()

    def _index(self) -> None:
        parents, by_type, fields, no_fields = self.parents, self._by_type, _FIELDS, ()
        order = self._order
        stack: list[ast.AST] = [self.root]
        while stack:
            node = stack.pop()
            cls = node.__class__
            order.append(node)
            by_type[cls].append(node)
            first = len(stack)
            for field in fields.get(cls, no_fields):
                value = getattr(node, field, None)
                if value.__class__ is list:
                    for item in cast("list[object]", value):
                        if isinstance(item, ast.AST):
                            parents[item] = node
                            stack.append(item)
                elif isinstance(value, ast.AST):
                    parents[value] = node
                    stack.append(value)
            if len(stack) - first > 1:
                stack[first:] = stack[first:][::-1]

    @overload
    def nodes(self, kind: type[Node], /) -> list[Node]: ...
    @overload
    def nodes(self, kind: type[Node], other: type[Other], /) -> list[Node | Other]: ...
    @overload
    def nodes(self, kind: type[Node], other: type[Other], third: type[Third], /) -> list[Node | Other | Third]: ...
    @overload
    def nodes(
        self, kind: type[Node], other: type[Other], third: type[Third], fourth: type[Fourth], /
    ) -> list[Node | Other | Third | Fourth]: ...
    def nodes(self, *kinds: type[ast.AST]) -> list[Any]:
        """All nodes of exactly these classes; in source order within each class."""
        if len(kinds) == 1:
            return self._by_type.get(kinds[0], [])
        return [node for kind in kinds for node in self._by_type.get(kind, [])]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What holds ``node``; None for the module."""
        return self.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, from the inside out, without itself."""
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds ``node`` or is it."""
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self.parents.get(current)
        return current if current is not None else self.root.body[0]

    def scope(self, node: ast.AST) -> Scope:
        """The module, class, function or lambda around ``node``; a def's decorators, defaults and name are outside."""
        return self._scopes.get(node) or self._scope(node)

    def _scope(self, node: ast.AST) -> Scope:
        parents, known = self.parents, self._scopes
        found: Scope | None = None
        child, passed = node, [node]
        while found is None:
            current = parents.get(child)
            if current is None:
                found = self.root
            elif isinstance(current, SCOPES) and _is_inside(child, current):
                found = current
            else:
                found = known.get(current)
                passed.append(current)
            child = current if current is not None else child
        for one in passed:
            known[one] = found
        return found

    def function(self, node: ast.AST) -> Function | None:
        """The innermost def around ``node``; None at module level."""
        current: Scope = self.scope(node)
        while not isinstance(current, FUNCTIONS):
            if isinstance(current, ast.Module):
                return None
            current = self.scope(current)
        return current

    def class_(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around ``node``."""
        return next((outer for outer in self.ancestors(node) if isinstance(outer, ast.ClassDef)), None)

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops of the same function whose body holds ``node``, from the inside out; comprehensions are none."""
        found: list[Loop] = []
        child = node
        for outer in self.ancestors(node):
            if isinstance(outer, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
                break
            if isinstance(outer, LOOPS) and child in outer.body:
                found.append(outer)
            child = outer
        return found

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that ``statement`` stands in."""
        parent = self.parents.get(statement)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list) and statement in block:
                return cast("list[ast.stmt]", block)
        return [statement]

    def inside(self, outer: ast.AST, *kinds: type[Node]) -> list[Node]:
        """The nodes of exactly these classes within ``outer``, itself included, in source order, nested defs too."""
        numbers = self._numbers
        first, last = numbers[outer], numbers[_last(outer)]
        found: list[Any] = []
        for kind in kinds:
            of_kind = self._numbers_of.get(kind)
            if of_kind is None:
                of_kind = self._numbers_of[kind] = [numbers[node] for node in self.nodes(kind)]
            found += self.nodes(kind)[bisect_left(of_kind, first) : bisect_right(of_kind, last)]
        return found if len(kinds) == 1 else sorted(found, key=numbers.__getitem__)

    @cached_property
    def _numbers(self) -> dict[ast.AST, int]:
        """Where each node comes in the source, those that hold it before it."""
        return dict(zip(self._order, range(len(self._order)), strict=True))


def _last(node: ast.AST) -> ast.AST:
    """The node within ``node`` that comes last; itself where it holds none."""
    while True:
        child = next(_children_from_the_end(node), None)
        if child is None:
            return node
        node = child


def _children_from_the_end(node: ast.AST) -> Iterator[ast.AST]:
    for field in reversed(_FIELDS.get(node.__class__, ())):
        value = getattr(node, field, None)
        for item in reversed(cast("list[object]", value)) if value.__class__ is list else (value,):
            if isinstance(item, ast.AST):
                yield item


def _is_inside(child: ast.AST, scope: Scope) -> bool:
    """Whether ``child``, directly under ``scope``, is evaluated within it."""
    if isinstance(scope, ast.Module):
        return True
    if isinstance(scope, ast.Lambda):
        return child is scope.body or child is scope.args
    return child in scope.body or (not isinstance(scope, ast.ClassDef) and child is scope.args)


def dotted(node: ast.AST | None) -> str | None:
    """The text that names a place: ``scaler``, ``self.scaler``, ``opts[0]``, ``state["opt"]``; None for the rest."""
    ends: list[str] = []
    # asked for nearly every node of a file: plain tests of the class are several times as fast as patterns
    while True:
        if isinstance(node, ast.Name):
            return node.id + "".join(reversed(ends)) if ends else node.id
        if isinstance(node, ast.Attribute):
            ends.append(f".{node.attr}")
        elif isinstance(node, ast.Subscript):
            index = node.slice
            if isinstance(index, ast.Constant):
                ends.append(f"[{index.value!r}]")
            elif isinstance(index, ast.Name):
                ends.append(f"[{index.id}]")
            else:
                return None
        else:
            return None
        node = node.value
