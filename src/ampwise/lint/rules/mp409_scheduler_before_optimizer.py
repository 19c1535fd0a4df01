"""MP409: the learning rate is stepped before the optimizer."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import TRAINERS
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.names import position
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import Loop
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_HEAD: Final = """
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

def train(model, loader):
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 10)
    for epoch in range(3):
"""
_STEP: Final = """        for x, y in loader:
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()
"""

INFO = RuleInfo(
    id="MP409",
    name="scheduler-before-optimizer",
    severity=Severity.WARNING,
    why="Since torch 1.1 a scheduler sets its first learning rate when it is made, and step() moves on to the next. "
    "Stepped before the optimizer, the first value of the schedule is never used.",
    remedy="Call scheduler.step() after optimizer.step().",
    evidence="torch's own warning: 'Detected call of `lr_scheduler.step()` before `optimizer.step()`'.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            title="at the beginning of an epoch",
            source=_HEAD
            + """        scheduler.step()
"""
            + _STEP,
        ),
        Example(
            title="in an iteration",
            source=_HEAD
            + """        for x, y in loader:
            optimizer.zero_grad()
            model(x, y).backward()
            scheduler.step()
            optimizer.step()
""",
            fixed=_HEAD
            + """        for x, y in loader:
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()
            scheduler.step()
""",
        ),
    ),
    good=(
        Example(
            source=_HEAD
            + _STEP
            + """        scheduler.step()
""",
        ),
        Example(
            title="an epoch that is not the first",
            source=_HEAD
            + """        if epoch > 0:
            scheduler.step()
"""
            + _STEP,
        ),
        Example(
            title="a scheduler of the script's own, or told where it is",
            source="""
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from schedules import Cosine

def train(model, loader):
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = Cosine(optimizer)
    other = StepLR(optimizer, 10)
    for epoch in range(3):
        scheduler.step()
        other.step(epoch)
"""
            + _STEP,
        ),
        Example(
            title="moved forward to where a run is resumed",
            source=_HEAD.replace("    for epoch", "    for _ in range(9):\n        scheduler.step()\n    for epoch")
            + _STEP
            + """        scheduler.step()
""",
        ),
        Example(
            title="the step is in a function elsewhere",
            source=_HEAD
            + """        scheduler.step()
        train_one_epoch(model, optimizer, loader)
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every scheduler of torch that a loop steps, with no condition, before any optimizer."""
    for event in file.flow.events:
        if event.act is not Act.SCHEDULER_STEP or not isinstance(event.node, ast.Call):
            continue
        loop = next(iter(file.tree.loops(event.node)), None)
        if loop is None or not _is_torchs(file, event.node) or _is_conditional(file, event.node, loop):
            continue
        steps = [one for one in file.flow.events_in(loop) if _steps(file, one)]
        if steps and position(event.node) < min(position(one.node) for one in steps) and not _is_warm(file, loop):
            name = ast.unparse(event.node.func).rpartition(".")[0]
            message = f"{name}.step() runs before the optimizer's: the schedule's first value is skipped"
            yield file.finding(INFO, event.node, message, fix=_fix(file, event.node, steps))


def _steps(file: SourceFile, event: Event) -> bool:
    """Whether the optimizer steps, here or in a function of the file."""
    if event.act is Act.CALL and event.callee is not None:
        return any(inner.act is Act.STEP for inner in file.flow.events_in(event.callee))
    return event.act is Act.STEP


def _is_torchs(file: SourceFile, call: ast.Call) -> bool:
    if call.args or call.keywords or not isinstance(call.func, ast.Attribute):
        return False
    value = file.kinds.of(call.func.value)
    is_known = value.kind is Kind.SCHEDULER and value.confidence is Confidence.MADE
    return is_known and (value.origin or "").startswith(("torch.optim.lr_scheduler.", "transformers."))


def _is_conditional(file: SourceFile, call: ast.Call, loop: Loop) -> bool:
    for outer in file.tree.ancestors(call):
        if outer is loop:
            return False
        if isinstance(outer, ast.If | ast.Try | ast.IfExp):
            return True
    return False


def _is_warm(file: SourceFile, loop: Loop) -> bool:
    """Whether the optimizer has stepped before the loop begins."""
    root = file.tree.function(loop) or file.tree.root
    before = [one for one in file.flow.events_in(root) if position(one.node) < position(loop)]
    return any(one.act is Act.STEP for one in before)


def _fix(file: SourceFile, call: ast.Call, steps: list[Event]) -> Fix | None:
    """Move the line behind the only step, or behind the scaler's update, where they stand in one block."""
    statement = file.tree.statement(call)
    block = file.tree.block(statement)
    places = [file.tree.statement(step.node) for step in steps]
    if len(places) != 1 or places[0] not in block or not isinstance(statement, ast.Expr):
        return None
    behind = block[block.index(places[0]) + 1 :]
    last = places[0]
    if behind and any(one.act is Act.UPDATE for one in file.flow.events_in(behind[0])):
        last = behind[0]
    line = file.text.segment(statement)
    return fix(file.edit.delete(statement), file.edit.insert_after(last, line), safe=False)


RULE = Rule(info=INFO, check=check, words=("lr_scheduler", "transformers"), off_under=TRAINERS)
