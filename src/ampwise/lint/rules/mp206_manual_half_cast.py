"""MP206: what autocast would cast by itself is cast to float16 by hand."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.guards import TRAINERS, is_unit_test
from ampwise.lint.kinds import Kind
from ampwise.lint.names import Bound
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_STEP: Final = """
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

INFO = RuleInfo(
    id="MP206",
    name="manual-half-cast",
    severity=Severity.WARNING,
    why="autocast casts what an operator needs in float16, and only that. Inputs that were made float16 before stay so "
    "in the operators that need float32, and targets lose digits: a box corner at pixel 1025 is rounded to whole "
    "pixels.",
    remedy="Leave inputs and targets in float32, and let autocast cast.",
    evidence="PyTorch's torch.amp reference: 'When entering an autocast-enabled region, Tensors may be any type. You "
    "should not call half() or bfloat16() on your model(s) or inputs when using autocasting.'",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source="""
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        x = x.cuda().half()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
"""
            + _STEP,
            fixed="""
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        x = x.cuda()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
"""
            + _STEP,
        ),
        Example(
            title="a target",
            source="""
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y.to(torch.float16))
"""
            + _STEP,
            fixed="""
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
"""
            + _STEP,
        ),
    ),
    good=(
        Example(
            source="""
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x.cuda()), y)
"""
            + _STEP,
        ),
        Example(
            title="a model of float16 parameters, for inference",
            source="""
import torch

def predict(model, x):
    model = model.half()
    with torch.no_grad(), torch.autocast("cuda"):
        return model(x.half())
""",
        ),
        Example(
            title="float16 only in the arm of another engine",
            source="""
import torch

def train(model, optimizer, scaler, loader, criterion, use_deepspeed):
    for x, y in loader:
        optimizer.zero_grad()
        if use_deepspeed:
            x = x.half()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
"""
            + _STEP,
        ),
        Example(
            title="a unit test of what a model does with float16",
            source="""
import torch

def test_half_input(model, x):
    with torch.autocast("cuda"):
        assert model(x.half()).dtype == torch.float16
""",
        ),
        Example(
            title="no autocast",
            source="""
import torch

def forward(model, x):
    return model(x.half())
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every argument of a forward or loss under autocast that was cast to float16 right there or just before."""
    seen: set[ast.expr] = set()
    for call in file.tree.nodes(ast.Call):
        if file.kinds.of(call.func).kind not in {Kind.MODULE, Kind.LOSS_FUNCTION}:
            continue
        region = file.regions.autocast(call)
        if (
            region is None
            or is_unit_test(file.tree, call)
            or file.kinds.is_under_no_grad(call)
            or file.kinds.of(call.func).is_half
        ):
            continue
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            cast = _cast(file, argument, call)
            if cast is not None and cast not in seen:
                seen.add(cast)
                message = f"{ast.unparse(cast)} is cast by hand, and {ast.unparse(call.func)} runs under autocast"
                yield file.finding(INFO, cast, message, fix=_fix(file, cast))


def _cast(file: SourceFile, argument: ast.expr, user: ast.Call) -> ast.Call | None:
    """The cast to float16 that made the argument, if nothing but the flow to ``user`` decides whether it is made."""
    if isinstance(argument, ast.Name):
        bound = file.names.latest(argument)
        if bound is None or bound.how is not Bound.ASSIGN or bound.value is None or bound.index is not None:
            return None
        if file.tree.function(bound.node) is not file.tree.function(user) or not _same_arms(file, bound.node, user):
            return None
        argument = bound.value
    return argument if isinstance(argument, ast.Call) and _is_half_cast(file, argument) else None


def _same_arms(file: SourceFile, cast: ast.AST, user: ast.AST) -> bool:
    around = set(file.tree.ancestors(user))
    return all(outer in around for outer in file.tree.ancestors(cast) if isinstance(outer, ast.If | ast.Try))


def _is_half_cast(file: SourceFile, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or file.kinds.is_a(call.func.value, Kind.MODULE):
        return False
    if call.func.attr == "half":
        return not call.args
    dtypes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "dtype")]
    return call.func.attr in {"to", "type"} and any(file.kinds.is_half_dtype(dtype) for dtype in dtypes)


def _fix(file: SourceFile, cast: ast.Call) -> Fix | None:
    if not isinstance(cast.func, ast.Attribute) or len(cast.args) + len(cast.keywords) > 1:
        return None
    return fix(file.edit.replace(cast, file.text.segment(cast.func.value)), safe=False)


RULE = Rule(info=INFO, check=check, words=(".half()", "float16", "torch.half"), off_under=TRAINERS)
