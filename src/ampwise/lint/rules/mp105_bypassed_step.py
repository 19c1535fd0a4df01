"""MP105: an optimizer steps by itself on the gradients of a scaled loss."""

import ast
from collections.abc import Iterator

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Kind
from ampwise.lint.protocol import PRECISION_WORD, are_exclusive, at, is_loop_variable
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

INFO = RuleInfo(
    id="MP105",
    name="bypassed-step",
    severity=Severity.ERROR,
    why="optimizer.step() neither divides the gradients by the loss scale nor skips the step when one is infinite. "
    "The update is thousands of times too large, and the first overflow destroys the weights.",
    remedy="Call scaler.step(optimizer) instead of optimizer.step(), then scaler.update().",
    evidence="torch.amp's documentation of GradScaler.step: it unscales, checks for inf and NaN, and only then steps.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source=after_loss("""
scaler.scale(loss).backward()
optimizer.step()
scaler.update()
"""),
            fixed=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="unscaled, but an infinite gradient is stepped on",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
optimizer.step()
scaler.update()
"""),
            fixed=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
"""),
        ),
    ),
    good=(
        Example(
            title="the arm without AMP",
            source=after_loss("""
if use_amp:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
else:
    loss.backward()
    optimizer.step()
"""),
        ),
        Example(
            title="arms whose conditions have two spellings",
            source=after_loss("""
if scaler is not None:
    scaler.scale(loss).backward()
else:
    loss.backward()
if use_amp:
    scaler.step(optimizer)
    scaler.update()
else:
    optimizer.step()
"""),
        ),
        Example(
            title="another optimizer, whose loss was not scaled",
            source=after_loss("""
scaler.scale(loss).backward()
penalty = model.penalty()
penalty.backward()
scaler.step(optimizer)
penalty_optimizer.step()
scaler.update()
"""),
        ),
        Example(
            title="a check of the gradients in the place of the scaler's",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
if torch.isfinite(norm):
    optimizer.step()
scaler.update()
"""),
        ),
        Example(
            title="a schedule",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scheduler.step()
"""),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every plain step that a scaled backward reaches."""
    seen: set[ast.expr] = set()
    for reach in file.flow.reached(start=_is_scaled, goal=lambda _, event: _is_plain_step(event), stop=_stops):
        goal = reach.goal
        if at(goal) in seen or not _is_certain(file, reach.start, goal):
            continue
        seen.add(at(goal))
        is_unscaled = _is_unscaled(file, goal)
        severity = Severity.WARNING if is_unscaled else Severity.ERROR
        yield file.finding(INFO, goal.node, _message(reach.start, goal, is_unscaled=is_unscaled), severity=severity,
                           fix=_fix(file, reach.start, goal))  # fmt: skip


def _is_scaled(event: Event) -> bool:
    return event.act is Act.BACKWARD and event.is_scaled


def _is_plain_step(event: Event) -> bool:
    return event.act is Act.STEP and event.scaler is None and event.optimizer is not None


def _stops(_: Event, event: Event) -> bool:
    match event.act:
        case Act.BACKWARD:
            return not event.is_scaled
        case Act.STEP | Act.UPDATE | Act.ZERO_GRAD:
            return True
        case Act.OPAQUE:
            return Kind.SCALER in event.handed
        case _:
            return False


def _is_certain(file: SourceFile, start: Event, goal: Event) -> bool:
    """Whether both are for the same precision: no condition on it parts them, and no other optimizer is meant."""
    place = goal.optimizer or ""
    if "sched" in place or is_loop_variable(file, place, goal.node) or are_exclusive(file, at(start), at(goal)):
        return False
    around = set(file.tree.ancestors(at(start)))
    for event in {goal.node, at(goal)}:
        for outer in file.tree.ancestors(event):
            if isinstance(outer, ast.If) and outer not in around and _decides(ast.unparse(outer.test)):
                return False
    return all(one.is_scaled for one in file.flow.events if one.act is Act.BACKWARD and _shares(file, one, goal))


def _decides(test: str) -> bool:
    return bool(PRECISION_WORD.search(test)) or any(word in test for word in ("finite", "nan", "inf"))


def _shares(file: SourceFile, backward: Event, goal: Event) -> bool:
    """Whether a backward is in the round of the step, so that it may be the one that feeds it."""
    first, second = backward.node, goal.node
    if file.tree.function(first) is not file.tree.function(second):
        return False
    return file.tree.loops(first)[:1] == file.tree.loops(second)[:1] and not are_exclusive(file, first, second)


def _is_unscaled(file: SourceFile, goal: Event) -> bool:
    return any(
        reach.goal.node is goal.node
        for reach in file.flow.reached(
            start=lambda event: event.act is Act.UNSCALE and event.optimizer == goal.optimizer,
            goal=lambda _, event: event.node is goal.node,
            stop=lambda _, event: event.act in {Act.STEP, Act.UPDATE},
        )
    )


def _message(start: Event, goal: Event, *, is_unscaled: bool) -> str:
    call = f"{start.scaler}.step({goal.optimizer})"
    if is_unscaled:
        return f"{goal.optimizer}.step() also steps on infinite gradients, which {call} skips"
    return f"{goal.optimizer}.step() uses gradients that are still multiplied by the loss scale: call {call}"


def _fix(file: SourceFile, start: Event, goal: Event) -> Fix | None:
    call = goal.node
    if start.scaler is None or start.via or goal.via or not isinstance(call, ast.Call) or call.args or call.keywords:
        return None
    return fix(file.edit.replace(call, f"{start.scaler}.step({goal.optimizer})"), safe=True)


RULE = Rule(info=INFO, check=check, words=(".step()",), off_under=ALL_FRAMEWORKS)
