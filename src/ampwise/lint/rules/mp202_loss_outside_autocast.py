"""MP202: a loss is computed outside of autocast from what a model computed in half precision inside."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act
from ampwise.lint.kinds import Confidence, Kind, Value
from ampwise.lint.names import Bound
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import dotted
from ampwise.records.finding import Example, Finding, Fixable, RuleInfo, Severity

_HEAD: Final = """
import torch
import torch.nn.functional as F

def train(model, optimizer, scaler, loader):
    criterion = torch.nn.CrossEntropyLoss()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
"""
_STEP: Final = """
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

INFO = RuleInfo(
    id="MP202",
    name="loss-outside-autocast",
    severity=Severity.WARNING,
    why="Under autocast a model's output is often float16, and autocast is what casts it to float32 in a loss. Outside "
    "the block, or where autocast is switched off, the loss is computed in float16: sums and squares overflow at "
    "65504 and small differences vanish.",
    remedy="Compute the loss inside the autocast block, or hand it output.float().",
    evidence="PyTorch's torch.amp reference: inputs of an autocast(enabled=False) region 'should be cast to dtype "
    "before use'; its examples compute the loss inside the block.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_HEAD
            + """
        loss = criterion(out, y)
"""
            + _STEP,
            fixed=_HEAD
            + """
        loss = criterion(out.float(), y)
"""
            + _STEP,
        ),
        Example(
            title="where autocast is switched off",
            source=_HEAD
            + """
            with torch.autocast("cuda", enabled=False):
                loss = F.mse_loss(out, y)
"""
            + _STEP,
            fixed=_HEAD
            + """
            with torch.autocast("cuda", enabled=False):
                loss = F.mse_loss(out.float(), y)
"""
            + _STEP,
        ),
        Example(
            title="a loss from elsewhere, which may cast inside; the output is resized on the way",
            source=_HEAD.replace("loader):", "loader, loss_fn):")
            + """
        if out.shape != y.shape:
            out = F.interpolate(input=out, size=y.shape)
        loss = loss_fn(out, y)
"""
            + _STEP,
        ),
    ),
    good=(
        Example(
            source=_HEAD
            + """
            loss = criterion(out, y)
"""
            + _STEP,
        ),
        Example(
            title="cast on the way",
            source=_HEAD
            + """
        out = out.float()
        loss = criterion(out, y)
"""
            + _STEP,
        ),
        Example(
            title="a loss of the script's own, which casts inside",
            source=_HEAD
            + """
        loss = my_loss(out, y)
"""
            + _STEP
            + """
def my_loss(a, b):
    return F.mse_loss(a.float(), b)
""",
        ),
        Example(
            title="an evaluation",
            source="""
import torch

@torch.no_grad()
def evaluate(model, loader):
    criterion = torch.nn.CrossEntropyLoss()
    for x, y in loader:
        with torch.autocast("cuda"):
            out = model(x)
        print(criterion(out, y))
""",
        ),
    ),
)

_LOSSES: Final = ("torch.nn.functional.", "torch.nn.")
_KEEPS: Final = frozenset({"squeeze", "view", "reshape", "flatten", "contiguous", "permute", "transpose", "unsqueeze"})
"""Methods that keep the dtype."""
_RESHAPES: Final = frozenset({"torch.nn.functional.interpolate", "torch.nn.functional.pad", "torch.squeeze"})
"""Functions that keep the dtype."""


def check(file: SourceFile) -> Iterator[Finding]:
    """Every loss of torch, computed outside, one of whose arguments a model made inside."""
    for call in file.tree.nodes(ast.Call):
        loss = _loss(file, call)
        is_torchs = loss is not None
        loss = loss or _other_loss(file, call)
        if loss is None or file.regions.autocast(call) is not None or file.kinds.is_under_no_grad(call):
            continue
        for argument in call.args[:2]:
            root = _root(argument)
            if root is not None and _is_from_inside(file, root, call):
                edit = file.edit.replace(argument, f"{file.text.segment(argument)}.float()")
                yield file.finding(
                    INFO,
                    call,
                    f"{loss}() is computed outside of autocast from {dotted(root)}, which autocast made half precision"
                    + ("" if is_torchs else ", unless it casts what it is given"),
                    severity=None if is_torchs else Severity.INFO,
                    fix=fix(edit, safe=False) if is_torchs else None,  # another loss may be given a list
                )
                break


def _loss(file: SourceFile, call: ast.Call) -> str | None:
    """How the call is named, if it is of a loss that torch itself provides."""
    name = file.names.resolve(call.func) or ""
    if name.startswith("torch.nn.functional.") and (name.endswith("_loss") or "cross_entropy" in name):
        return ast.unparse(call.func)
    value: Value = file.kinds.of(call.func)
    if value.kind is Kind.LOSS_FUNCTION and (value.origin or "").startswith(_LOSSES):
        return ast.unparse(call.func)
    return None


def _other_loss(file: SourceFile, call: ast.Call) -> str | None:
    """How the call is named, if it is of a loss function from elsewhere, which may or may not cast inside."""
    value = file.kinds.of(call.func)
    is_known = value.confidence > Confidence.NAME or file.names.function(call) is not None
    return ast.unparse(call.func) if value.kind is Kind.LOSS_FUNCTION and not is_known else None


def _root(expression: ast.expr) -> ast.Name | None:
    """The name whose value an argument is, unchanged in dtype."""
    while True:
        match expression:
            case ast.Name():
                return expression
            case ast.Subscript(value=inner):
                expression = inner
            case ast.Attribute(value=inner, attr="logits" | "sample" | "last_hidden_state" | "prediction"):
                expression = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _KEEPS:
                expression = inner
            case _:
                return None


def _is_from_inside(file: SourceFile, name: ast.Name, call: ast.Call) -> bool:
    bound = file.names.latest(name)
    if bound is None or bound.how is not Bound.ASSIGN or not isinstance(bound.value, ast.Call):
        return False
    made = bound.value
    if file.names.resolve(made.func) in _RESHAPES:
        inner = _root(made.args[0] if made.args else next((k.value for k in made.keywords if k.arg == "input"), name))
        return inner is not None and inner is not name and _is_from_inside(file, inner, call)
    if file.tree.function(made) is not file.tree.function(call) or made.lineno > call.lineno:
        return False
    is_forward = any(event.act is Act.FORWARD and event.node is made for event in file.flow.events_in(bound.node))
    return is_forward and file.regions.autocast(made) is not None and not file.kinds.is_under_no_grad(made)


RULE = Rule(info=INFO, check=check, words=("autocast",))
