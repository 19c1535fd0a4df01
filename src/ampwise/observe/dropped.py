"""Finds statements that move or cast a tensor and keep nothing of the result."""

import ast
import linecache
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Final

import torch

from ampwise._base.text import inert_line
from ampwise.observe.frames import Line
from ampwise.observe.lookup import value_of
from ampwise.records.crash import DroppedResult

_MOVES: Final = frozenset({"to", "cuda", "cpu", "half", "bfloat16", "float", "double", "type"})
"""Methods that leave a tensor as it is and return another; a module's of these names change the module."""


def dropped_results(frame: FrameType) -> Iterator[DroppedResult]:
    """Statements such as ``x.to(device)`` in the function that ``frame`` runs, where ``x`` is a tensor."""
    filename = frame.f_code.co_filename
    lines = _lines_of(frame.f_code)
    for node in ast.walk(_tree(filename)):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=receiver, attr=method))) if (
                method in _MOVES and node.lineno in lines and isinstance(value_of(receiver, frame), torch.Tensor)
            ):
                yield DroppedResult(
                    source=inert_line(ast.unparse(node.value)),
                    name=ast.unparse(receiver),
                    file=Line(filename, node.lineno).shown_file,
                    line=node.lineno,
                )
            case _:
                pass


def _tree(filename: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _lines_of(code: CodeType) -> frozenset[int]:
    return frozenset(line for _, _, line in code.co_lines() if line is not None)
