"""What can be known of an expression's value without running anything."""

import ast
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final


class Kind(StrEnum):
    """The kinds the rules speak of."""

    SCALER = "scaler"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    MODULE = "module"
    LOSS_FUNCTION = "loss function"
    LOADER = "loader"
    TENSOR = "tensor"
    NUMBER = "number"
    """Anything of plain Python or numpy: no device is waited for."""
    UNKNOWN = "unknown"


class Confidence(IntEnum):
    """What a kind is known from; higher is surer."""

    NONE = 0
    NAME = 1
    """The variable is called so."""
    USE = 2
    """Only that kind has the methods called on it."""
    MADE = 3
    """It was seen being constructed or computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is known of an expression's value; None means unknown."""

    kind: Kind = Kind.UNKNOWN
    confidence: Confidence = Confidence.NONE
    origin: str | None = None
    """The dotted name of the constructor or function that made it."""
    call: ast.Call | None = None
    """The call that made it."""
    on_device: bool | None = None
    """Of a tensor: computed on, or moved to, the training device; False: on the CPU on purpose."""
    is_half: bool | None = None
    """Of a tensor or module: explicitly float16."""
    has_graph: bool | None = None
    """Of a tensor: keeps the autograd graph that made it."""


UNKNOWN: Final = Value()
NUMBER: Final = Value(kind=Kind.NUMBER, confidence=Confidence.MADE)


def is_method(call: ast.Call, name: str) -> bool:
    """Whether ``call`` calls a method of that name."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def tensor_arguments(call: ast.Call) -> list[ast.expr]:
    """The arguments of a function of torch that may be tensors."""
    found: list[ast.expr] = []
    for argument in call.args:
        found.extend(argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument])
    return [*found, *(keyword.value for keyword in call.keywords if keyword.arg in {"input", "target", "tensors"})]


def mixed(tensors: list[Value]) -> Value:
    """What an operator on these tensors yields."""
    devices = [value.on_device for value in tensors]
    graphs = [value.has_graph for value in tensors]
    halves = {value.is_half for value in tensors}
    return Value(
        kind=Kind.TENSOR,
        confidence=max(value.confidence for value in tensors),
        on_device=True if True in devices else None if None in devices else False,
        is_half=halves.pop() if len(halves) == 1 else None,
        has_graph=True if True in graphs else None if None in graphs else False,
    )


def is_cpu(expression: ast.expr) -> bool:
    """Whether a device is the CPU in so many words."""
    match expression:
        case ast.Constant(value=str() as text):
            return text.startswith("cpu")
        case ast.Call(func=ast.Attribute(attr="device"), args=[ast.Constant(value=str() as text), *_]):
            return text.startswith("cpu")
        case _:
            return False
