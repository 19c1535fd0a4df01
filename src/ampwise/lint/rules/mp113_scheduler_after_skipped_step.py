"""MP113: a learning rate schedule moves on although the scaler skipped the optimizer's step."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.loops import is_rare
from ampwise.lint.protocol import at
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_ASKED: Final = re.compile(r"scale|found_inf|_step_count|skip|inf\b|overflow|stepped|did_step|is_step", re.IGNORECASE)
_BEFORE: Final = "scale_before"

_STEP: Final = """
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""

INFO = RuleInfo(
    id="MP113",
    name="scheduler-after-skipped-step",
    severity=Severity.INFO,
    why="While the loss scale is being found, scaler.step() skips steps; a schedule that moves every iteration runs "
    "ahead of the optimizer, and torch warns that lr_scheduler.step() came before optimizer.step().",
    remedy="Step the schedule only if the optimizer stepped: compare scaler.get_scale() before and after update().",
    evidence="pytorch/pytorch#44511, #55585, huggingface/transformers#11144. Seen in 6 of 48 public scripts.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=after_loss(_STEP + "scheduler.step()\n"),
            fixed=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scale_before = scaler.get_scale()
scaler.update()
if scaler.get_scale() >= scale_before:
    scheduler.step()
"""),
        ),
        Example(
            title="a function that does the step of one iteration",
            source="""
def step(scaler, optimizer, scheduler):
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    scheduler.step()
""",
            fixed="""
def step(scaler, optimizer, scheduler):
    scaler.step(optimizer)
    scale_before = scaler.get_scale()
    scaler.update()
    optimizer.zero_grad()
    if scaler.get_scale() >= scale_before:
        scheduler.step()
""",
        ),
    ),
    good=(
        Example(
            title="skipped when the step was",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
before = scaler.get_scale()
scaler.update()
if before <= scaler.get_scale():
    scheduler.step()
"""),
        ),
        Example(
            title="once an epoch",
            source="""
import torch
def train(model, optimizer, scheduler, scaler, loader):
    for epoch in range(10):
        for batch in loader:
            optimizer.zero_grad()
            scaler.scale(model(batch)).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
""",
        ),
        Example(
            title="in the arm without AMP",
            source=after_loss("""
if use_amp:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
else:
    loss.backward()
    optimizer.step()
    scheduler.step()
"""),
        ),
        Example(title="a schedule that is told the iteration", source=after_loss(_STEP + "scheduler.step(i)\n")),
        Example(
            title="a schedule by another name for its method", source=after_loss(_STEP + "scheduler.step_update(i)\n")
        ),
        Example(
            title="a schedule of one's own",
            source=after_loss(_STEP + "scheduler.step()\n")
            + """
class Cosine:
    def step(self):
        self.lr = 0.9 * self.lr

scheduler = Cosine()
""",
        ),
        Example(
            title="once an epoch, seen by the last batch",
            source=after_loss(_STEP + "if i == len(loader) - 1:\n    scheduler.step()\n"),
        ),
        Example(
            title="the iteration is a method, the schedule moves per epoch elsewhere",
            source="""
class Trainer:
    def train_step(self, batch):
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(batch)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def end_epoch(self):
        self.scheduler.step()
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every schedule that moves in the iteration of a scaler's step, whether or not it was skipped."""
    seen: set[ast.expr] = set()
    for reach in file.flow.reached(start=_steps, goal=lambda _, event: event.act is Act.SCHEDULER_STEP, stop=_stops):
        goal = reach.goal
        if goal.node in seen or not _is_per_iteration(file, reach.start, goal) or _is_asked(file, goal):
            continue
        seen.add(goal.node)
        if _is_torch(file, goal):
            message = f"{goal.optimizer}.step() moves on even when {reach.start.scaler}.step() skipped the step"
            yield file.finding(INFO, goal.node, message, fix=_fix(file, reach.start, goal))


def _steps(event: Event) -> bool:
    return event.act is Act.STEP and event.scaler is not None


def _stops(_: Event, event: Event) -> bool:
    return event.act in {Act.BACKWARD, Act.SCHEDULER_STEP}


def _is_per_iteration(file: SourceFile, start: Event, goal: Event) -> bool:
    """Whether both stand in the same loop, or straight in the same function, and the schedule moves in every round."""
    first, second = at(start), at(goal)
    loops = file.tree.loops(second)[:1]
    if file.tree.loops(first)[:1] != loops or start.via is not goal.via:
        return False
    around = set(file.tree.ancestors(first))
    arms = [outer for outer in file.tree.ancestors(second) if isinstance(outer, ast.If) and outer not in around]
    return not any(is_rare(arm.test) for arm in arms if loops == file.tree.loops(arm)[:1])


def _is_asked(file: SourceFile, goal: Event) -> bool:
    for node in {goal.node, at(goal)}:
        for outer in file.tree.ancestors(node):
            if isinstance(outer, ast.If) and _ASKED.search(ast.unparse(outer.test)):
                return True
    return False


def _is_torch(file: SourceFile, goal: Event) -> bool:
    """Whether the schedule may be torch's: given no argument, and not of a class of this file."""
    call = goal.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.args or call.keywords:
        return False
    value = file.kinds.of(call.func.value)
    if value.kind is Kind.SCHEDULER and value.confidence is Confidence.MADE:
        return True
    if "warm" in (goal.optimizer or "").lower():
        return False  # torch has no schedule of that name: they are people's own
    bindings = file.names.lookup(call.func.value) + file.names.visible(goal.optimizer or "", file.tree.root)
    made = [bound.value for bound in bindings if isinstance(bound.value, ast.Call)]
    return not any(file.names.resolve(one.func) in file.names.classes for one in made)


def _fix(file: SourceFile, start: Event, goal: Event) -> Fix | None:
    """Remember the scale before the update, and step the schedule only if it did not shrink."""
    scaler, statement = start.scaler, file.tree.statement(goal.node)
    if start.via or goal.via or not isinstance(statement, ast.Expr) or _BEFORE in file.text.text:
        return None
    block = file.tree.block(statement)
    earlier = block[: block.index(statement)]
    update = next((one for one in earlier if any(_updates(file, one, scaler))), None)
    if update is None:
        return None
    indent = " " * statement.col_offset
    text = f"if {scaler}.get_scale() >= {_BEFORE}:{file.text.newline}{indent}    {file.text.segment(statement)}"
    return fix(
        file.edit.insert_before(update, f"{_BEFORE} = {scaler}.get_scale()"),
        file.edit.replace(statement, text),
        safe=False,
    )


def _updates(file: SourceFile, statement: ast.stmt, scaler: str | None) -> Iterator[bool]:
    if isinstance(statement, ast.Expr):
        for event in file.flow.events_in(statement):
            yield event.act is Act.UPDATE and event.scaler == scaler


RULE = Rule(info=INFO, check=check, words=(".step()",), off_under=ALL_FRAMEWORKS)
