"""Looks a name of the source up in a frame, without running any code of the script's."""

import ast
from types import FrameType
from typing import Any, Final

from torch import nn

_TABLES: Final = ("_parameters", "_buffers", "_modules")
NOTHING: Final = object()
"""What a name stands for that cannot be looked up."""


def value_of(node: ast.AST, frame: FrameType) -> Any:
    """What ``x`` or ``self.block.weight`` stands for in ``frame``; ``NOTHING`` where only a call would tell."""
    match node:
        case ast.Name(id=name):
            return frame.f_locals.get(name, frame.f_globals.get(name, NOTHING))
        case ast.Attribute(value=inner, attr=name):
            return _attribute(value_of(inner, frame), name)
        case _:
            return NOTHING


def _attribute(owner: Any, name: str) -> Any:
    """Attributes kept as plain data; a property could do anything."""
    held: dict[str, Any] = getattr(owner, "__dict__", {})
    if isinstance(owner, nn.Module):
        for table in _TABLES:
            found: Any = held.get(table, {}).get(name)
            if found is not None:
                return found
    return held.get(name, NOTHING)
