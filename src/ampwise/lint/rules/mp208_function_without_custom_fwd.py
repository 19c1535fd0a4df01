"""MP208: an autograd.Function multiplies matrices under autocast without saying which dtype it wants."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.guards import TRAINERS
from ampwise.lint.names import Names
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import FUNCTIONS, Function
from ampwise.records.finding import Edit, Example, Finding, Fix, Fixable, RuleInfo, Severity

_USE: Final = """

def forward(x, w):
    with torch.autocast("cuda"):
        return Multiply.apply(x, w)
"""

INFO = RuleInfo(
    id="MP208",
    name="function-without-custom_fwd",
    severity=Severity.WARNING,
    why="In the forward of an autograd.Function autocast casts matrix products as anywhere else, but its backward runs "
    "outside of autocast: it meets saved float32 tensors and float16 gradients, and fails with a dtype mismatch or "
    "computes in a dtype nobody chose.",
    remedy="Decorate forward with torch.amp.custom_fwd(device_type=...) and backward with torch.amp.custom_bwd.",
    evidence="PyTorch's AMP examples, 'Functions with multiple inputs or autocastable ops'.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source="""
import torch

class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad
"""
            + _USE,
            fixed="""
import torch

class Multiply(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad
"""
            + _USE,
        ),
    ),
    good=(
        Example(
            source="""
import torch

class Multiply(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad
"""
            + _USE,
        ),
        Example(
            title="a function that only rounds",
            source="""
import torch

class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return (x * w).round()

    @staticmethod
    def backward(ctx, grad):
        return grad, None
"""
            + _USE,
        ),
        Example(
            title="never applied under autocast",
            source="""
import torch

class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad

def forward(x, w):
    return Multiply.apply(x, w)
""",
        ),
        Example(
            title="autocast switched off inside",
            source="""
import torch

class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        with torch.autocast("cuda", enabled=False):
            return x.float() @ w.float()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad
"""
            + _USE,
        ),
    ),
)

_CAST: Final = frozenset(
    "matmul mm bmm mv addmm baddbmm addbmm einsum linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d".split()
)
"""Functions and methods that autocast runs in half precision."""
_CUSTOM: Final = ("custom_fwd", "custom_bwd")


def check(file: SourceFile) -> Iterator[Finding]:
    """Every such class that the file applies in an autocast region."""
    applied = _applied_under_autocast(file)
    for node in file.tree.nodes(ast.ClassDef) if applied else ():
        if node.name not in applied or "torch.autograd.Function" not in file.names.bases(node):
            continue
        methods = {item.name: item for item in node.body if isinstance(item, FUNCTIONS)}
        forward = methods.get("forward")
        if forward is not None and _computes(file, forward) and not _is_decorated(file.names, forward):
            message = f"{node.name}.forward multiplies matrices, is applied under autocast, and has no custom_fwd"
            yield file.finding(INFO, forward, message, fix=_fix(file, forward, methods.get("backward")))


def _applied_under_autocast(file: SourceFile) -> set[str]:
    found: set[str] = set()
    for call in file.tree.nodes(ast.Call):
        match call.func:
            case ast.Attribute(attr="apply", value=ast.Name(id=name)) if file.regions.autocast(call) is not None:
                found.add(name)
            case _:
                continue
    return found


def _computes(file: SourceFile, function: Function) -> bool:
    """Whether the body, itself, does what autocast casts, and nothing there switches autocast off."""
    casts = False
    for node in file.tree.inside(function, ast.Call, ast.BinOp):
        if any(region.enabled is False for region in file.regions.around(node)):
            return False
        if isinstance(node, ast.BinOp):
            casts |= isinstance(node.op, ast.MatMult)
        else:
            casts |= (file.names.resolve(node.func) or ast.unparse(node.func)).rpartition(".")[2] in _CAST
    return casts


def _is_decorated(names: Names, function: Function) -> bool:
    calls = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
    return any((names.resolve(one) or "").endswith(_CUSTOM) for one in calls)


def _fix(file: SourceFile, forward: Function, backward: Function | None) -> Fix | None:
    imported = file.edit.import_module("torch", ast.copy_location(ast.Name(id="torch"), forward))
    if backward is None or imported is None or not file.supports((2, 4)) or "setup_context" in file.text.text:
        return None
    name, edits = imported
    return fix(
        *edits, _decorate(file, forward, f"{name}.amp.custom_fwd"), _decorate(file, backward, f"{name}.amp.custom_bwd"),
        safe=False,
    )  # fmt: skip


def _decorate(file: SourceFile, function: Function, decorator: str) -> Edit:
    start = file.text.start(function)
    indent = " " * function.col_offset
    return file.edit.insert(start, f'@{decorator}(device_type="cuda"){file.text.newline}{indent}')


RULE = Rule(info=INFO, check=check, words=("Function",), off_under=TRAINERS)
