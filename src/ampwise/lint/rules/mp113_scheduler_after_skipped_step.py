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
from ampwise.lint.tree import dotted
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_ASKED: Final = re.compile(
    r"scale(?!r)|found_inf|_step_count|skip|inf\b|overflow|stepped|did_step|is_step", re.IGNORECASE
)
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
        Example(
            title="through a method, in the first epoch alone",
            source="""
from helpers import WarmUpLR
warmup_scheduler = WarmUpLR(optimizer, 100)

class Trainer:
    def move(self):
        warmup_scheduler.step()

    def fit(self, loader, epoch):
        for batch in loader:
            self.optimizer.zero_grad()
            self.scaler.scale(self.model(batch)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if epoch == 0:
                self.move()
""",
        ),
        Example(
            title="in the arm that asks only whether there is a scaler",
            source="""
def fit(self, loader):
    for step, batch in enumerate(loader):
        if self.use_amp and self.scaler:
            self.scaler.scale(self.model(batch)).backward()
            if (step + 1) % self.accumulation == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                if self.scheduler:
                    self.scheduler.step()
                self.optimizer.zero_grad()
""",
        ),
        Example(
            title="a schedule of the project's own, by its class",
            source="""
from lib.schedules import PolyLrScheduler
schedule = PolyLrScheduler(optimizer, power=0.9)
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
""",
            fixed="""
from lib.schedules import PolyLrScheduler
schedule = PolyLrScheduler(optimizer, power=0.9)
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scale_before = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= scale_before:
        schedule.step()
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
            title="a schedule of one's own that the caller hands over; one that knows no optimizer",
            source=after_loss(_STEP + "scheduler.step()\nweight_scheduler.step()\n")
            + """
class Cosine:
    def step(self):
        self.lr = 0.9 * self.lr

def main(weights):
    scheduler = Cosine()
    weight_scheduler = weights.LinearScheduler(0, 1)
    train(scheduler, weight_scheduler)
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
    if file.tree.loops(first)[:1] != loops:
        return False
    if start.via is not goal.via and not (loops and _is_straight(file, start) and _is_straight(file, goal)):
        return False
    around = set(file.tree.ancestors(first))
    arms = [outer for outer in file.tree.ancestors(second) if isinstance(outer, ast.If) and outer not in around]
    return not any(_is_seldom(arm.test) for arm in arms if loops == file.tree.loops(arm)[:1])


def _is_straight(file: SourceFile, event: Event) -> bool:
    """Whether the event happens once where its call stands: in no loop of the function that is called."""
    return event.via is None or not file.tree.loops(event.node)


def _is_seldom(test: ast.expr) -> bool:
    """Whether few iterations of an epoch fulfil a condition; those of some epochs alone are not few."""
    return is_rare(test) and "epoch" not in ast.unparse(test)


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
    made = list(_constructions(file, dotted(call.func.value) or ""))
    if made:
        return any(_may_be_torch(file, one) for one in made)
    # torch has no schedule of that name: they are people's own
    return "warm" not in (goal.optimizer or "").lower()


def _constructions(file: SourceFile, place: str) -> Iterator[ast.Call]:
    """The calls whose values something of this name is given anywhere in the file, by a caller too."""
    last = place.rpartition(".")[2]
    for statement in file.tree.nodes(ast.Assign):
        names = [(dotted(target) or "").rpartition(".")[2] for target in statement.targets]
        if last in names and isinstance(statement.value, ast.Call):
            yield statement.value


def _may_be_torch(file: SourceFile, made: ast.Call) -> bool:
    """Whether a schedule may be torch's by how it is made: with an optimizer, and of no other class of this file."""
    if file.kinds.of(made).kind is Kind.SCHEDULER:
        return True
    if file.names.resolve(made.func) in file.names.classes:
        return False
    given = [*made.args, *(keyword.value for keyword in made.keywords)]
    is_open = any(isinstance(one, ast.Starred) for one in made.args) or None in {k.arg for k in made.keywords}
    return is_open or any(file.kinds.is_a(one, Kind.OPTIMIZER) for one in given)


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
