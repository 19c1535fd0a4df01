"""Which tensors are float16: said so in the source, or what a matrix product yields under float16 autocast."""

import ast
from typing import Final

from ampwise.lint.kinds import Kind
from ampwise.lint.names import Bound
from ampwise.lint.source import SourceFile

_PRODUCTS: Final = frozenset(
    "torch.matmul torch.mm torch.bmm torch.einsum torch.baddbmm torch.addmm torch.nn.functional.linear "
    "torch.nn.functional.conv1d torch.nn.functional.conv2d torch.nn.functional.conv3d".split()
)
"""Functions that autocast runs in float16."""
_LAYERS: Final = ("torch.nn.Linear", "torch.nn.Conv", "torch.nn.ConvTranspose")
_METHODS: Final = frozenset({"matmul", "mm", "bmm", "baddbmm"})
_KEEPS: Final = frozenset(
    "view reshape transpose permute squeeze unsqueeze contiguous flatten expand masked_fill masked_fill_ clone mul div "
    "add sub mul_ div_ add_ relu clamp abs neg".split()
)
"""Methods of a tensor that keep its dtype, under autocast too."""
_MAX_DEPTH: Final = 6


def is_half(file: SourceFile, expression: ast.expr) -> bool:
    """Whether ``expression`` is a float16 tensor whenever its code runs, as far as the source tells."""
    value = file.kinds.of(expression)
    return value.kind is Kind.TENSOR and value.is_half is True


def may_be_half(file: SourceFile, expression: ast.expr) -> bool:
    """Whether ``expression`` is float16 on purpose, or a matrix product in a function that runs under autocast."""
    if is_half(file, expression):
        return True
    return _runs_in_half(file, expression) and _is_product(file, expression, 0)


def _runs_in_half(file: SourceFile, node: ast.AST) -> bool:
    """Whether float16 autocast is in force at ``node``: around it, or, in a file that enters it, around its caller."""
    regions = file.regions.around(node)
    if regions:
        return regions[0].enabled is not False and regions[0].dtype in {"torch.float16", "torch.half"}
    function = file.tree.function(node)
    if function is None or function.name != "forward":
        return False
    entered = [region for region in file.regions.all() if region.enabled is not False]
    return any(region.dtype in {"torch.float16", "torch.half"} for region in entered)


def _is_product(file: SourceFile, expression: ast.expr, depth: int) -> bool:
    """Whether a matrix product's dtype reaches ``expression`` through operations that keep it."""
    if depth > _MAX_DEPTH:
        return False
    match expression:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.BinOp(left=left, right=right, op=ast.Mult() | ast.Div() | ast.Add() | ast.Sub()):
            sides = [side for side in (left, right) if file.kinds.of(side).kind is not Kind.NUMBER]
            return bool(sides) and all(_is_product(file, side, depth + 1) for side in sides)
        case ast.Call():
            return _is_product_call(file, expression, depth)
        case ast.Name():
            bound = file.names.latest(expression)
            if bound is None or bound.how is not Bound.ASSIGN or bound.value is None or bound.index is not None:
                return False
            return bound.node is not file.tree.statement(expression) and _is_product(file, bound.value, depth + 1)
        case _:
            return False


def _is_product_call(file: SourceFile, call: ast.Call, depth: int) -> bool:
    name = file.names.resolve(call.func)
    if name in _PRODUCTS:
        return True
    if isinstance(call.func, ast.Attribute):
        if call.func.attr in _METHODS:
            return True
        if call.func.attr in _KEEPS and not (name or "").startswith("torch."):
            return _is_product(file, call.func.value, depth + 1)
    origin = file.kinds.of(call.func).origin or ""
    return file.kinds.of(call.func).kind is Kind.MODULE and origin.startswith(_LAYERS)
