"""MP301: a constant that float16 cannot hold is put into a float16 tensor."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.halves import may_be_half
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_HEAD: Final = """
import torch

def attend(q, k, mask):
    with torch.autocast("cuda", dtype=torch.float16):
        scores = q @ k.transpose(-2, -1) * 0.125
"""

INFO = RuleInfo(
    id="MP301",
    name="half-overflow-constant",
    severity=Severity.WARNING,
    why="float16 ends at 65504. masked_fill and full refuse a larger constant with RuntimeError; sums and torch.where "
    "silently turn it into infinity, and a row that is masked everywhere into nan after softmax.",
    remedy="Use torch.finfo(x.dtype).min, which fits every dtype.",
    evidence="Measured with torch 2.13: half.masked_fill(mask, -1e9) raises 'value cannot be converted to type "
    "c10::Half without overflow', half + -1e9 gives -inf. apex#1052, apex#1105, fairseq#3575.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_HEAD
            + """
        scores = scores.masked_fill(mask == 0, -1e9)
        return scores.softmax(-1)
""",
            fixed=_HEAD
            + """
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        return scores.softmax(-1)
""",
        ),
        Example(
            title="torch.where",
            source=_HEAD
            + """
        return torch.where(mask, scores, -1e6).softmax(-1)
""",
            fixed=_HEAD
            + """
        return torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(-1)
""",
        ),
        Example(
            title="a tensor made in float16",
            source="""
import torch

def make(n):
    return torch.full((n, n), -1e9, dtype=torch.float16)
""",
        ),
        Example(
            title="in place, on a tensor cast by hand",
            source="""
import torch

def mask_out(x, mask):
    x = torch.zeros(4, dtype=torch.float16)
    x.masked_fill_(mask, -1e9)
    return x
""",
            fixed="""
import torch

def mask_out(x, mask):
    x = torch.zeros(4, dtype=torch.float16)
    x.masked_fill_(mask, torch.finfo(x.dtype).min)
    return x
""",
        ),
    ),
    good=(
        Example(
            source=_HEAD
            + """
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        return scores.softmax(-1)
""",
        ),
        Example(
            title="infinity is a float16",
            source=_HEAD
            + """
        scores = scores.masked_fill(mask == 0, float("-inf"))
        return scores.masked_fill(mask == 1, -1e4)
""",
        ),
        Example(
            title="softmax and cumsum are float32 under autocast",
            source=_HEAD
            + """
        probabilities = scores.softmax(-1)
        total = probabilities.cumsum(-1)
        return probabilities.masked_fill(mask == 0, -1e9), total.masked_fill(mask == 0, -1e9)
""",
        ),
        Example(
            title="bfloat16 reaches as far as float32",
            source="""
import torch

def attend(q, k, mask):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = q @ k.transpose(-2, -1)
        return scores.masked_fill(mask == 0, -1e9).softmax(-1)
""",
        ),
        Example(
            title="cast to float32 before",
            source=_HEAD
            + """
        scores = scores.float()
        return scores.masked_fill(mask == 0, -1e9).softmax(-1)
""",
        ),
        Example(
            title="nothing in half precision",
            source="""
def attend(q, k, mask):
    scores = q @ k.transpose(-2, -1)
    return scores.masked_fill(mask == 0, -1e9).softmax(-1)
""",
        ),
    ),
)

MAX: Final = 65504
_FILLS: Final = {"masked_fill": 1, "masked_fill_": 1, "fill_": 0, "index_fill": 2, "index_fill_": 2}


def check(file: SourceFile) -> Iterator[Finding]:
    """Every such constant that is filled, chosen or added into a tensor that is float16, as the source tells."""
    for call in file.tree.nodes(ast.Call):
        found = _filled(file, call)
        if found is not None:
            tensor, constant = found
            yield _finding(file, call, tensor, constant)
    for node in file.tree.nodes(ast.BinOp):
        if isinstance(node.op, ast.Add | ast.Sub) and is_too_large(node.right) and may_be_half(file, node.left):
            yield _finding(file, node, node.left, node.right)


def _finding(file: SourceFile, node: ast.expr, tensor: ast.expr, constant: ast.expr) -> Finding:
    name = ast.unparse(tensor)
    message = f"{name if len(name) < 40 else 'the tensor'} is float16 here, and {ast.unparse(constant)} is beyond 65504"
    return file.finding(INFO, node, message, fix=_fix(file, tensor, constant))


def _filled(file: SourceFile, call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """The float16 tensor and the constant that a call puts into it."""
    name = file.names.resolve(call.func)
    match name, call.args:
        case "torch.where", [_, kept, constant] if is_too_large(constant) and may_be_half(file, kept):
            return kept, constant
        case "torch.where", [_, constant, kept] if is_too_large(constant) and may_be_half(file, kept):
            return kept, constant
        case "torch.masked_fill", [tensor, _, constant] if is_too_large(constant) and may_be_half(file, tensor):
            return tensor, constant
        case "torch.full" | "torch.full_like", [_, constant] if is_too_large(constant):
            return (call, constant) if file.kinds.of(call).is_half else None
        case _:
            pass
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _FILLS:
        return None
    index = _FILLS[call.func.attr]
    value = next((keyword.value for keyword in call.keywords if keyword.arg == "value"), None)
    value = call.args[index] if value is None and len(call.args) > index else value
    tensor = call.func.value
    return (tensor, value) if value is not None and is_too_large(value) and may_be_half(file, tensor) else None


def number(expression: ast.expr) -> float | None:
    """The value of a number literal, with its sign."""
    match expression:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -float(value)
        case _:
            return None


def is_too_large(expression: ast.expr) -> bool:
    """Whether a literal is finite and beyond float16."""
    value = number(expression)
    return value is not None and MAX < abs(value) < float("inf")


def _fix(file: SourceFile, tensor: ast.expr, constant: ast.expr) -> Fix | None:
    value = number(constant)
    imported = file.edit.import_module("torch", constant)
    if value is None or not isinstance(tensor, ast.Name) or imported is None:
        return None
    torch, edits = imported
    end = "min" if value < 0 else "max"
    return fix(file.edit.replace(constant, f"{torch}.finfo({tensor.id}.dtype).{end}"), *edits, safe=False)


RULE = Rule(info=INFO, check=check, words=("half", "float16", "autocast", "Half"))
