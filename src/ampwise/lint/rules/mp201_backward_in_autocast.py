"""MP201: backward runs under autocast."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.kinds import Kind
from ampwise.lint.regions import Region
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.torch_names import PYTHON
from ampwise.lint.tree import FUNCTIONS
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_HEAD: Final = """
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
"""
_FIXED: Final = """
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

INFO = RuleInfo(
    id="MP201",
    name="backward-in-autocast",
    severity=Severity.WARNING,
    why="autocast belongs around the forward pass and the loss. Backward operators already run in the dtype that their "
    "forward operators had; under autocast whatever backward computes besides (checkpointed forwards, hooks, custom "
    "functions) is cast once more, and the cache of cast weights is kept alive.",
    remedy="End the `with` block after the loss, and call backward behind it.",
    evidence="PyTorch's torch.amp reference: 'Backward passes under autocast are not recommended'.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source=_HEAD
            + """
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
            fixed=_HEAD + _FIXED,
        ),
        Example(
            title="with the whole step",
            source=_HEAD
            + """
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
""",
            fixed=_HEAD + _FIXED,
        ),
        Example(
            title="a decorated function",
            source="""
import torch

@torch.autocast("cuda", dtype=torch.bfloat16)
def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = model(x, y)
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            title="in the arm with AMP alone: without it autocast is off",
            source="""
import torch

def train(model, optimizer, scaler, loader, use_amp):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=use_amp):
            loss = model(x, y)
            if use_amp:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
""",
            fixed="""
import torch

def train(model, optimizer, scaler, loader, use_amp):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=use_amp):
            loss = model(x, y)
        if use_amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
""",
        ),
        Example(
            title="before another forward, which must stay",
            source=_HEAD
            + """
            scaler.scale(loss).backward()
            fake = other(y)
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="through a function of the file",
            source=_HEAD
            + """
            backward_and_step(scaler, optimizer, loss)

def backward_and_step(scaler, optimizer, loss):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
    ),
    good=(
        Example(source=_HEAD + _FIXED),
        Example(
            title="autocast switched off inside",
            source=_HEAD
            + """
            with torch.autocast("cuda", enabled=False):
                scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="a function defined in the block, called behind it",
            source=_HEAD
            + """
            def closure():
                scaler.scale(loss).backward()
        closure()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="a gradient penalty, whose own graph is part of the forward",
            source=_HEAD
            + """
            grads = torch.autograd.grad(loss, x, create_graph=True)[0]
            loss = loss + grads.pow(2).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="the arm without AMP, where autocast is off",
            source="""
import torch

def train(model, optimizer, scaler, loader, use_amp):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=use_amp):
            loss = model(x, y)
            if not use_amp:
                loss.backward()
                optimizer.step()
            else:
                torch.cuda.nvtx.mark("backward follows")
        if use_amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
""",
        ),
        Example(
            title="a method that is only called backward",
            source="""
import torch

class Function:
    def run(self):
        with torch.autocast("cuda"):
            return super().backward()
""",
        ),
    ),
)

_PROTOCOL: Final = frozenset({
    Act.BACKWARD, Act.UNSCALE, Act.CLIP, Act.STEP, Act.UPDATE, Act.ZERO_GRAD, Act.SCHEDULER_STEP, Act.SYNC,
})  # fmt: skip

_HARMLESS: Final = frozenset(
    "scale item detach cpu numpy append update record elapsed_time synchronize set_postfix set_description info write "
    "add_scalar log debug parameters zero_grad get_scale get_last_lr raises time".split()
)
"""Methods that compute nothing in a dtype."""


def check(file: SourceFile) -> Iterator[Finding]:
    """Every backward in an enabled autocast region, or in a function of the file that is called in one."""
    for event in file.flow.events:
        region = file.regions.autocast(event.node)
        if region is None:
            continue
        if event.act is Act.BACKWARD and _is_backward(file, event) and not _is_other_arm(file, event, region):
            message = f"{ast.unparse(event.node)} runs under {region.name}: end the block after the loss"
            yield file.finding(INFO, event.node, message, fix=_fix(file, event, region))
        elif event.act is Act.CALL and _holds_backward(file, event):
            callee = event.callee.name if event.callee is not None else "a function"
            yield file.finding(INFO, event.node, f"{callee}() calls backward, here under {region.name}")


def _is_backward(file: SourceFile, event: Event) -> bool:
    """Whether a call named backward differentiates a tensor."""
    call = event.node
    if event.is_scaled or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return event.is_scaled
    owner = call.func.value
    if file.names.resolve(owner) == "torch.autograd" or file.kinds.is_a(owner, Kind.TENSOR):
        return True
    is_method = event.loss in {"self", "cls"} or ast.unparse(owner).startswith("super(")
    return not call.args and not is_method and file.kinds.of(owner).kind is Kind.UNKNOWN


def _is_other_arm(file: SourceFile, event: Event, region: Region) -> bool:
    """Whether the scaled backward stands in the other arm of an `if`, and the region may be off in this one."""
    is_direct = isinstance(region.node, FUNCTIONS) or any(one.context_expr is region.call for one in region.node.items)
    if event.is_scaled or (region.enabled is True and is_direct):
        return False
    child: ast.AST = event.node
    for outer in file.tree.ancestors(event.node):
        if outer is region.node:
            return False
        if isinstance(outer, ast.If):
            if _is_negated(outer.test, region.condition) and child in outer.body:
                return True
            other = outer.orelse if child in outer.body else outer.body
            scaled = (one for statement in other for one in file.flow.events_in(statement))
            if any(one.act is Act.BACKWARD and one.is_scaled for one in scaled):
                return True
        child = outer
    return False


def _is_negated(test: ast.expr, condition: ast.expr | None) -> bool:
    """Whether ``test`` says that ``condition`` does not hold."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner) if condition is not None:
            return ast.unparse(inner) == ast.unparse(condition)
        case _:
            return False


def _holds_backward(file: SourceFile, event: Event) -> bool:
    inner = file.flow.events_in(event.callee) if event.callee is not None else []
    return any(
        one.act is Act.BACKWARD and _is_backward(file, one) and not file.regions.around(one.node) for one in inner
    )


def _fix(file: SourceFile, event: Event, region: Region) -> Fix | None:
    """Move the tail of the block behind it; safe where that holds nothing but the step's own calls."""
    block = region.node
    if not isinstance(block, ast.With) or len(block.items) != 1 or block.lineno == block.body[0].lineno:
        return None
    first = next((one for one in block.body if event.node in ast.walk(one)), None)
    if first is None or first is block.body[0]:
        return None
    moved = block.body[block.body.index(first) :]
    if not all(_may_move(file, statement) for statement in moved):
        return None
    is_safe = all(_is_protocol(file, statement) for statement in moved)
    edits = file.edit.dedent(moved, levels_from=block)
    return fix(*edits, safe=is_safe) if edits else None


def _may_move(file: SourceFile, statement: ast.stmt) -> bool:
    """Whether nothing in ``statement`` can be a forward: its calls are the protocol's, or of a known harmless kind."""
    known = {event.node for event in file.flow.events_in(statement) if event.act in _PROTOCOL}
    return all(call in known or _is_harmless(file, call) for call in file.tree.inside(statement, ast.Call))


def _is_harmless(file: SourceFile, call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in _HARMLESS:
        return True
    return file.kinds.is_a(call, Kind.NUMBER) or file.names.resolve(call.func) in PYTHON


def _is_protocol(file: SourceFile, statement: ast.stmt) -> bool:
    match statement:
        case ast.If(body=body, orelse=orelse):
            return all(_is_protocol(file, inner) for inner in (*body, *orelse))
        case ast.Expr(value=ast.Call() as call):
            return any(event.node is call and event.act in _PROTOCOL for event in file.flow.events_in(statement))
        case ast.Pass() | ast.Continue():
            return True
        case _:
            return False


RULE = Rule(info=INFO, check=check, words=("autocast",))
