"""Finds the dictionaries a script saves its training state in, and where it loads them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ampwise.runner.placement.names import Names, calls_in_all
from ampwise.runner.placement.source import Function, Source, arguments, dotted


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A statement that loads the optimizer's state from a checkpoint."""

    statement: ast.stmt
    mapping: str
    """The checkpoint's name in the script."""
    indent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A dictionary that is saved and holds an optimizer's state."""

    node: ast.Dict | ast.Call
    key: str
    loads: tuple[Load, ...]

    def entry(self, source: Source, value: str) -> tuple[int, str]:
        """Where to write the new entry, and its text, in the dictionary's own layout."""
        if isinstance(self.node, ast.Call):
            end = source.span(self.node)[1] - 1
            return end, f"{_separator(source, end)}{self.key}={value}"
        last = self.node.values[-1]
        end = source.span(self.node)[1] - 1
        entry = f'"{self.key}": {value}'
        if last.lineno == self.node.lineno or last.end_lineno == self.node.end_lineno:
            return end, f"{_separator(source, end)}{entry}"
        line = source.line_start((self.node.keys[-1] or last).lineno)
        indent = source.text[line : len(source.text) - len(source.text[line:].lstrip())]
        comma_missing = not source.text[source.span(last)[1] : end].lstrip().startswith(",")
        place = source.span(last)[1] if comma_missing else source.text.index(",", source.span(last)[1]) + 1
        return place, f"{',' if comma_missing else ''}{source.newline}{indent}{entry},"


def find_checkpoints(source: Source, names: Names) -> tuple[Checkpoint, ...]:
    """The dictionaries given to ``torch.save`` that hold an optimizer's state."""
    loads = tuple(_loads(source, names))
    found: list[Checkpoint] = []
    for call in calls_in_all(source.tree):
        if names.full(call.func) == "torch.save" and call.args:
            node = _dictionary(source, names, call)
            if node is not None and _holds_optimizer(node, names):
                found.append(Checkpoint(node=node, key=_free_key(node), loads=loads if not found else ()))
    return tuple(found)


def _dictionary(source: Source, names: Names, call: ast.Call) -> ast.Dict | ast.Call | None:
    """The dictionary that a save is given: written there, assigned to a name, or handed to the function around it."""
    given = call.args[0]
    if isinstance(given, ast.Name):
        given = next(_values(source, names, given, source.scope(call)), given)
    if isinstance(given, ast.Dict) and given.values:
        return given
    if isinstance(given, ast.Call) and dotted(given.func) == "dict" and given.keywords and not given.args:
        return given
    return None


def _values(source: Source, names: Names, name: ast.Name, scope: Function | ast.Module) -> Iterator[ast.expr]:
    """What ``name`` may stand for in ``scope``, the last assignment first."""
    assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    for node in reversed(assigned):
        if any(dotted(target) == name.id for target in node.targets):
            yield node.value
    if not isinstance(scope, ast.Module):
        for call in names.callers(scope):
            for parameter, argument in arguments(scope, call):
                if parameter == name.id:
                    is_name = isinstance(argument, ast.Name)
                    yield from _values(source, names, argument, source.scope(call)) if is_name else (argument,)


def _holds_optimizer(node: ast.AST, names: Names) -> bool:
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict" and names.is_optimizer(call.func.value)
        for call in calls_in_all(node)
    )


def _free_key(node: ast.Dict | ast.Call) -> str:
    if isinstance(node, ast.Dict):
        used = {key.value for key in node.keys if isinstance(key, ast.Constant)}
    else:
        used = {word.arg for word in node.keywords}
    return "scaler" if "scaler" not in used else "grad_scaler"


def _loads(source: Source, names: Names) -> Iterator[Load]:
    for call in calls_in_all(source.tree):
        match call:
            case ast.Call(
                func=ast.Attribute(value=optimizer, attr="load_state_dict"),
                args=[ast.Subscript(value=ast.Name(id=mapping))],
            ) if names.is_optimizer(optimizer):
                statement = source.statement(call)
                if isinstance(statement, ast.Expr):
                    yield Load(statement=statement, mapping=mapping, indent="    ")
            case _:
                pass


def _separator(source: Source, end: int) -> str:
    return " " if source.text[:end].rstrip().endswith(",") else ", "
