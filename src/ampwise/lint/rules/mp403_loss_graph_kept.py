"""MP403: a loss is kept over iterations together with the graph that made it."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act
from ampwise.lint.guards import is_unit_test
from ampwise.lint.kinds import Kind
from ampwise.lint.names import Binding, Bound
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import Loop, dotted
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_LOOP: Final = """
def train(model, optimizer, loader, criterion):
    total = 0.0
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
"""

INFO = RuleInfo(
    id="MP403",
    name="loss-graph-kept",
    severity=Severity.WARNING,
    why="A loss refers to the autograd graph that made it. A sum or list of losses that outlives the iteration keeps "
    "the graphs of all iterations, and memory grows until it runs out.",
    remedy="Keep loss.detach().",
    evidence="PyTorch's FAQ: 'Don't accumulate history across your training loop'.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source=_LOOP
            + """
        total += loss
    return total
""",
            fixed=_LOOP
            + """
        total += loss.detach()
    return total
""",
        ),
        Example(
            title="a list",
            source=_LOOP
            + """
        losses.append(loss * 2)
    return losses
""",
            fixed=_LOOP
            + """
        losses.append((loss * 2).detach())
    return losses
""",
        ),
        Example(
            title="of unknown make, but differentiated",
            source="""
def train(engine, optimizer, loader):
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        loss, _ = engine.compute(batch)
        loss.backward()
        optimizer.step()
        total += loss
    return total
""",
            fixed="""
def train(engine, optimizer, loader):
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        loss, _ = engine.compute(batch)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total
""",
        ),
        Example(
            title="spelt out",
            source=_LOOP
            + """
        total = total + loss
    return total
""",
            fixed=_LOOP
            + """
        total = total + loss.detach()
    return total
""",
        ),
    ),
    good=(
        Example(
            source=_LOOP
            + """
        total += loss.item()
        losses.append(loss.detach().cpu())
    return total, losses
""",
        ),
        Example(
            title="a loss of several terms, within one iteration",
            source="""
def train(model, optimizer, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        total = criterion(model(x), y)
        extra = criterion(model(y), x)
        total += extra
        losses = []
        losses.append(extra)
        total.backward()
        optimizer.step()
""",
        ),
        Example(
            title="one loss for each of several models, within one iteration",
            source="""
def train(models, optimizers, loader, criterion):
    for x, y in loader:
        losses = []
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
""",
        ),
        Example(
            title="in the first iteration alone",
            source=_LOOP.replace("for x, y in loader", "for step, (x, y) in enumerate(loader)")
            + """
        if step == 0:
            losses.append(loss)
    return losses
""",
        ),
        Example(
            title="a unit test of a few steps",
            source=_LOOP.replace("def train", "def test_loss_falls")
            .replace(", loader", ", batches")
            .replace("loader", "batches")
            + """
        losses.append(loss)
    assert losses[-1] < losses[0]
""",
        ),
        Example(
            title="made a number before",
            source=_LOOP
            + """
        loss = loss.item()
        total += loss
    return total
""",
        ),
        Example(
            title="handed through a function that may detach",
            source=_LOOP
            + """
        loss = reduce_mean(loss)
        total += loss
    return total
""",
        ),
        Example(
            title="a meter, which takes a number out of it",
            source=_LOOP.replace("losses = []", "losses = Meter()")
            + """
        losses.append(loss)
    return losses
""",
        ),
        Example(
            title="differentiated together, once in a while",
            source="""
def train(model, optimizer, loader, criterion):
    total = 0
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        total += loss
        if i % 4 == 3:
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = 0
""",
        ),
        Example(
            title="an evaluation",
            source="""
import torch

@torch.no_grad()
def evaluate(model, loader, criterion):
    total = 0
    for x, y in loader:
        loss = criterion(model(x), y)
        total += loss
    return total
""",
        ),
    ),
)


_EMPTIES: Final = frozenset({"clear", "pop", "popleft", "backward"})


def check(file: SourceFile) -> Iterator[Finding]:
    """Every loss with a graph that is added to what was made before the training loop."""
    for loop in file.loops.training:
        if _is_over_optimizers(file, loop) or is_unit_test(file.tree, loop):
            continue
        for node in file.tree.inside(loop, ast.AugAssign, ast.Assign, ast.Call):
            if loop not in file.tree.loops(node) or _is_once(file, node, loop):
                continue
            kept = _kept(node)
            if kept is None or not _has_graph(file, kept[1], loop) or not _outlives(file, kept[0], loop):
                continue
            target, value = kept
            message = f"{ast.unparse(target)} keeps {ast.unparse(value)} with its graph over the iterations"
            yield file.finding(INFO, node, message, fix=_fix(file, value))


def _is_over_optimizers(file: SourceFile, loop: Loop) -> bool:
    """Whether each round trains another model: the rounds together are one iteration."""
    if isinstance(loop, ast.While):
        return False
    names = {name.id for name in file.tree.inside(loop.target, ast.Name)}
    steps = [event.optimizer or "" for event in file.flow.events_in(loop) if event.act is Act.STEP]
    return any(place.partition(".")[0].partition("[")[0] in names for place in steps)


def _is_once(file: SourceFile, node: ast.AST, loop: Loop) -> bool:
    """Whether an `if` in the loop lets only one iteration through: ``if step == 0``."""
    for outer in file.tree.ancestors(node):
        if outer is loop:
            return False
        match outer:
            case ast.If(test=ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant()])):
                return True
            case _:
                continue
    return False


def _kept(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The place that outlives the statement, and what is put there."""
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            return target, value
        case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Add(), left=left, right=value)):
            return (target, value) if dotted(left) is not None and dotted(left) == dotted(target) else None
        case ast.Call(func=ast.Attribute(attr="append", value=target), args=[value]):
            return target, value
        case _:
            return None


def _has_graph(file: SourceFile, value: ast.expr, loop: Loop) -> bool:
    """Whether the value was seen being computed with a graph; a name alone proves nothing."""
    if file.kinds.is_under_no_grad(value):
        return False
    match value:
        case ast.Name():
            bound = file.names.latest(value)
            if bound is None or bound.how is not Bound.ASSIGN or bound.value is None:
                return False
            known = file.kinds.of(bound.value)
            is_seen = known.kind is Kind.TENSOR and known.has_graph is True and bound.index is None
            return (is_seen and not isinstance(bound.value, ast.Name)) or _is_differentiated(file, value, bound, loop)
        case ast.BinOp(left=left, right=right):
            sides = [side for side in (left, right) if file.kinds.of(side).kind is not Kind.NUMBER]
            return any(_has_graph(file, side, loop) for side in sides)
        case ast.Call(func=ast.Attribute(attr="mean" | "sum" | "cpu" | "clone", value=inner)):
            return _has_graph(file, inner, loop)
        case _:
            return False


def _is_differentiated(file: SourceFile, name: ast.Name, bound: Binding, loop: Loop) -> bool:
    """Whether backward is called in the loop on the very value that ``bound`` gave to ``name``."""
    for event in file.flow.events_in(loop):
        if event.act is not Act.BACKWARD:
            continue
        for other in file.tree.inside(event.node, ast.Name):
            if other.id == name.id and file.names.latest(other) is bound:
                return True
    return False


def _outlives(file: SourceFile, target: ast.expr, loop: Loop) -> bool:
    """Whether the place is made before the loop and neither made anew, emptied nor differentiated in it."""
    name = dotted(target)
    found = [bound for bound in file.names.lookup(target) if bound.how is Bound.ASSIGN] if name else []
    if not found or any(_is_anew(file, bound.node, loop, name) for bound in found):
        return False
    if any(isinstance(bound.value, ast.Call) and _is_unknown(file, bound.value) for bound in found):
        return False
    if not any(loop not in file.tree.ancestors(bound.node) for bound in found):
        return False
    scope = file.tree.function(loop) or file.tree.root
    if any(event.act is Act.BACKWARD and event.loss == name for event in file.flow.events_in(scope)):
        return False
    used = [call.func for call in file.tree.inside(loop, ast.Call) if isinstance(call.func, ast.Attribute)]
    return not any(use.attr in _EMPTIES and dotted(use.value) == name for use in used)


def _is_unknown(file: SourceFile, call: ast.Call) -> bool:
    """Whether a call makes something other than a tensor, number or list: a meter may detach."""
    return file.kinds.of(call).kind not in {Kind.TENSOR, Kind.NUMBER} and not _is_list(file, call)


def _is_list(file: SourceFile, call: ast.Call) -> bool:
    return file.names.resolve(call.func) in {"list", "collections.deque"}


def _is_anew(file: SourceFile, node: ast.AST, loop: Loop, name: str | None) -> bool:
    """Whether ``node`` gives the place a fresh value within the loop."""
    if loop not in file.tree.ancestors(node):
        return False
    return not (isinstance(node, ast.Assign) and any(dotted(n) == name for n in file.tree.inside(node.value, ast.Name)))


def _fix(file: SourceFile, value: ast.expr) -> Fix | None:
    text = file.text.segment(value)
    detached = f"({text}).detach()" if isinstance(value, ast.BinOp) else f"{text}.detach()"
    return fix(file.edit.replace(value, detached), safe=True)


RULE = Rule(info=INFO, check=check, words=("backward",))
