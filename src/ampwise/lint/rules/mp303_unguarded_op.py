"""MP303: a float16 tensor that may be zero is divided by or rooted with no guard."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.halves import may_be_half
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

_HEAD: Final = """
import torch

def scale(q, k):
    with torch.autocast("cuda", dtype=torch.float16):
        x = q @ k
"""

INFO = RuleInfo(
    id="MP303",
    name="unguarded-op",
    severity=Severity.INFO,
    why="In float16 the variance of small values and the difference of close ones are soon exactly zero. A division by "
    "them, their root's gradient or their logarithm is then inf or nan.",
    remedy="Compute in float32, or add an eps of float16's size before the operation.",
    evidence="ATen/autocast_mode.cpp: sqrt, div, mean, std and var are not among the operators that CUDA autocast runs "
    "in float32.",
    on_by_default=False,
    bad=(
        Example(
            source=_HEAD
            + """
        return x / x.std(-1, keepdim=True)
""",
        ),
        Example(
            title="a root",
            source=_HEAD
            + """
        return x.var(-1).sqrt()
""",
        ),
    ),
    good=(
        Example(
            source=_HEAD
            + """
        return x / (x.std(-1, keepdim=True) + 1e-4)
""",
        ),
        Example(
            title="in float32",
            source=_HEAD
            + """
        return x.float() / x.float().std(-1, keepdim=True)
""",
        ),
        Example(
            title="norms are float32 under autocast",
            source=_HEAD
            + """
        return x / x.norm()
""",
        ),
    ),
)

_SPREADS: Final = frozenset({"std", "var", "mean"})
_ROOTS: Final = frozenset({"torch.sqrt"})


def check(file: SourceFile) -> Iterator[Finding]:
    """Every division by, and root of, a spread, mean or difference of a float16 tensor."""
    for node in file.tree.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div) and _may_vanish(file, node.right):
            yield file.finding(INFO, node, f"{ast.unparse(node.right)} may be zero in float16")
    for call in file.tree.nodes(ast.Call):
        inner = _rooted(file, call)
        if inner is not None and _may_vanish(file, inner):
            yield file.finding(INFO, call, f"{ast.unparse(inner)} may be zero in float16")


def _rooted(file: SourceFile, call: ast.Call) -> ast.expr | None:
    if file.names.resolve(call.func) in _ROOTS and call.args:
        return call.args[0]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "sqrt" and not call.args:
        return call.func.value
    return None


def _may_vanish(file: SourceFile, expression: ast.expr) -> bool:
    match expression:
        case ast.Call(func=ast.Attribute(attr=attr, value=tensor)) if attr in _SPREADS:
            return may_be_half(file, tensor)
        case ast.BinOp(op=ast.Sub(), left=left, right=right):
            return may_be_half(file, left) and may_be_half(file, right)
        case _:
            return False


RULE = Rule(info=INFO, check=check, words=("half", "float16", "autocast", "Half"))
