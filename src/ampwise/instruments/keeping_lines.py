"""Finds the line of source that puts a tensor into a variable: the frame that holds it is elsewhere by then."""

import ast
import linecache

from ampwise.observe.frames import Line

_ADDS = frozenset({"append", "extend", "insert", "add", "update", "setdefault"})


def keeping_line(line: Line, name: str) -> Line:
    """The nearest line that adds to the variable, else that sets it; ``line`` itself where the source tells neither.

    Args:
        line: Where the frame that holds the variable is.
        name: The variable's.
    """
    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(line.file)))))
    except (SyntaxError, ValueError, RecursionError):
        return line
    for lines in (
        [node.lineno for node in nodes if isinstance(node, (ast.stmt, ast.Call)) and _adds(node, name)],
        [node.lineno for node in nodes if isinstance(node, ast.Assign) and _sets(node, name)],
    ):
        if lines:
            return Line(line.file, min(lines, key=lambda one: abs(one - line.line)))
    return line


def _adds(node: ast.AST, name: str) -> bool:
    match node:
        case ast.AugAssign(target=ast.Name(id=target)):
            return target == name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr=method)):
            return target == name and method in _ADDS
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target))]):
            return target == name
        case ast.Assign(value=value) if _sets(node, name):
            return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(value))
        case _:
            return False


def _sets(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
