"""MP302: a small constant guards a float16 tensor, in which it is zero."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.halves import is_half, may_be_half
from ampwise.lint.kinds import Kind
from ampwise.lint.regions import argument
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

_HEAD: Final = """
import torch

def scale(q, k):
    with torch.autocast("cuda", dtype=torch.float16):
        norm = q @ k
"""

INFO = RuleInfo(
    id="MP302",
    name="half-eps",
    severity=Severity.WARNING,
    why="The smallest positive float16 is 6e-8. A constant below half of that is zero in float16, and guards against "
    "nothing: the division, logarithm or square root behind it yields inf or nan.",
    remedy="Compute in float32, x.float().clamp(min=1e-8), or take a constant of float16's size such as 1e-4.",
    evidence="Measured with torch 2.13: half.clamp(min=1e-8) and half + 1e-8 leave 0.0, 1 / (half + 1e-8) is inf, "
    "F.normalize(zeros.half()) is nan.",
    bad=(
        Example(
            source=_HEAD
            + """
        return 1.0 / norm.clamp(min=1e-8)
""",
        ),
        Example(
            title="added",
            source=_HEAD
            + """
        return q / (norm + 1e-8)
""",
        ),
        Example(
            title="an optimizer of float16 parameters, whose eps is 1e-8",
            source="""
import torch
from torch import nn

def make():
    model = nn.Linear(8, 8).half()
    return torch.optim.Adam(model.parameters(), lr=1e-3)
""",
        ),
        Example(
            title="normalize, whose eps is 1e-12",
            source="""
import torch
import torch.nn.functional as F

def make():
    x = torch.zeros(4, dtype=torch.float16)
    return F.normalize(x, dim=0)
""",
        ),
    ),
    good=(
        Example(
            source=_HEAD
            + """
        return 1.0 / norm.float().clamp(min=1e-8)
""",
        ),
        Example(
            title="a sum, a norm or an error, which are float32 under autocast",
            source=_HEAD
            + """
        total = norm.sum(-1)
        return q / (total + 1e-8), q / (norm.norm() + 1e-8)
""",
        ),
        Example(
            title="a constant that float16 holds",
            source=_HEAD
            + """
        return 1.0 / norm.clamp(min=1e-4)
""",
        ),
        Example(
            title="a model that is only cast to be evaluated",
            source="""
import torch
from torch import nn

def make():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model.half(), optimizer
""",
        ),
        Example(
            title="bfloat16",
            source="""
import torch

def scale(q, k):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return 1.0 / (q @ k).clamp(min=1e-8)
""",
        ),
        Example(
            title="normalize under autocast",
            source=_HEAD
            + """
        return torch.nn.functional.normalize(norm)
""",
        ),
    ),
)

_ZERO: Final = 2.0**-25
"""What is no larger rounds to zero in float16."""
_ADAMS: Final = frozenset({"torch.optim.Adam", "torch.optim.AdamW", "torch.optim.RMSprop", "torch.optim.NAdam"})


def check(file: SourceFile) -> Iterator[Finding]:
    """Every such constant that is added to or bounds a tensor that is float16, as the source tells."""
    for node in file.tree.nodes(ast.BinOp):
        if isinstance(node.op, ast.Add) and is_zero_in_half(node.right) and may_be_half(file, node.left):
            yield _finding(file, node, node.left, node.right)
    for call in file.tree.nodes(ast.Call):
        yield from _clamp(file, call)
        name = file.names.resolve(call.func)
        if name == "torch.nn.functional.normalize" and call.args and is_half(file, call.args[0]):
            eps = argument(call, "eps", 3)
            if eps is None or is_zero_in_half(eps):
                message = f"{ast.unparse(call.args[0])} is float16, in which normalize's eps is zero: nan for zeros"
                yield file.finding(INFO, call, message)
        elif name in _ADAMS:
            yield from _optimizer(file, call)


def _finding(file: SourceFile, node: ast.expr, tensor: ast.expr, constant: ast.expr) -> Finding:
    name = ast.unparse(tensor)
    message = f"{name if len(name) < 40 else 'the tensor'} is float16 here, in which {ast.unparse(constant)} is zero"
    return file.finding(INFO, node, message)


def _clamp(file: SourceFile, call: ast.Call) -> Iterator[Finding]:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in {"clamp", "clamp_", "clamp_min", "clip"}:
        return
    is_function = file.names.resolve(call.func) in {"torch.clamp", "torch.clamp_min", "torch.clip"}
    if is_function and not call.args:
        return
    tensor = call.args[0] if is_function else call.func.value
    bound = argument(call, "min", 1 if is_function else 0)
    if bound is not None and is_zero_in_half(bound) and may_be_half(file, tensor):
        yield _finding(file, call, tensor, bound)


def _optimizer(file: SourceFile, call: ast.Call) -> Iterator[Finding]:
    """Adam on the parameters of a model that was made float16 before."""
    eps = argument(call, "eps", 3)
    if not call.args or (eps is not None and not is_zero_in_half(eps)):
        return
    match call.args[0]:
        case ast.Call(func=ast.Attribute(attr="parameters", value=model)):
            value = file.kinds.of(model)
            if value.kind is Kind.MODULE and value.is_half:
                message = f"{ast.unparse(model)} is float16, in which the optimizer's eps is zero"
                yield file.finding(INFO, call, message)
        case _:
            return


def is_zero_in_half(expression: ast.expr) -> bool:
    """Whether a literal is positive and rounds to zero in float16."""
    value = expression.value if isinstance(expression, ast.Constant) else None
    return isinstance(value, float) and 0 < value <= _ZERO


RULE = Rule(info=INFO, check=check, words=("half", "float16", "autocast", "Half"))
