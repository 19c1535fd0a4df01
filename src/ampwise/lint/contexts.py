"""What a ``with`` enters, seen through names: partials, lambdas, choices, helpers and parameters."""

import ast
from collections.abc import Iterator
from functools import cached_property

from ampwise.lint.names import Binding, Bound, Names, defaults
from ampwise.lint.torch_names import AUTOCASTS
from ampwise.lint.tree import Function, Tree

_MAX_DEPTH = 6


class Contexts:
    """The constructions that the expressions of a file's ``with`` statements and decorators may stand for."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self._tree = tree
        self._names = names

    def entered(self, expression: ast.expr, depth: int = 0) -> Iterator[ast.expr]:
        """Each construction that ``expression`` may be; more than one where something chooses among them."""
        if depth > _MAX_DEPTH:
            return
        match expression:
            case ast.IfExp(body=body, orelse=other):
                yield from self.entered(body, depth + 1)
                yield from self.entered(other, depth + 1)
            case ast.Call(func=function):
                yield from self._called(function, expression, depth + 1)
            case ast.Name() | ast.Attribute() if self._names.resolve(expression) not in AUTOCASTS:
                for value in self._values(expression):
                    yield from self.entered(value, depth + 1)
            case _:
                yield expression

    def _called(self, function: ast.expr, call: ast.Call, depth: int) -> Iterator[ast.expr]:
        """What calling ``function`` with the arguments of ``call`` may construct."""
        if depth > _MAX_DEPTH:
            return
        callee = self._names.function(call)
        match function:
            case ast.IfExp(body=body, orelse=other):
                yield from self._called(body, call, depth + 1)
                yield from self._called(other, call, depth + 1)
            case ast.Lambda(body=body):
                yield from self.entered(body, depth + 1)
            case ast.Call(func=partial, args=[made, *first]) if self._names.resolve(partial) == "functools.partial":
                whole = _call(made, [*first, *call.args], [*function.keywords, *call.keywords], at=function)
                yield from self._called(made, whole, depth + 1)
            case ast.Name() | ast.Attribute() if function is call.func and callee is not None:
                for value in self._returns.get(callee, []):
                    yield from self.entered(value, depth + 1)
            case ast.Name() | ast.Attribute() if self._names.resolve(function) not in AUTOCASTS:
                values = list(self._values(function))
                for value in values:
                    yield from self._called(value, call, depth + 1)
                if not values:
                    yield call
            case _:
                yield call if function is call.func else _call(function, call.args, call.keywords, at=call)

    def _values(self, place: ast.expr) -> Iterator[ast.expr]:
        """What a name is given: by every assignment, or by its callers where it is a parameter."""
        for bound in self._names.lookup(place):
            if bound.how is Bound.ASSIGN and bound.index is None and bound.value is not None:
                yield bound.value
            elif bound.how is Bound.PARAMETER:
                yield from self._handed(bound)

    def _handed(self, parameter: Binding) -> Iterator[ast.expr]:
        function = self._tree.function(parameter.node)
        if function is None:
            return
        names = [argument.arg for argument, _ in defaults(function.args)]
        offset = 1 if names[:1] in (["self"], ["cls"]) else 0
        for call in self._calls.get(function, []):
            named = next((keyword.value for keyword in call.keywords if keyword.arg == parameter.name), None)
            index = names.index(parameter.name) - offset
            if named is not None:
                yield named
            elif 0 <= index < len(call.args):
                yield call.args[index]

    @cached_property
    def _calls(self) -> dict[Function, list[ast.Call]]:
        found: dict[Function, list[ast.Call]] = {}
        for call in self._tree.nodes(ast.Call):
            if (callee := self._names.function(call)) is not None:
                found.setdefault(callee, []).append(call)
        return found

    @cached_property
    def _returns(self) -> dict[Function | None, list[ast.expr]]:
        found: dict[Function | None, list[ast.expr]] = {}
        for node in self._tree.nodes(ast.Return):
            if node.value is not None:
                found.setdefault(self._tree.function(node), []).append(node.value)
        return found


def _call(function: ast.expr, args: list[ast.expr], keywords: list[ast.keyword], *, at: ast.expr) -> ast.Call:
    """The call that a partial or an alias stands for, with the arguments as they are written."""
    return ast.copy_location(ast.Call(func=function, args=args, keywords=keywords), at)
