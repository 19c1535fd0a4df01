"""MP102: the gradients of one optimizer are unscaled twice before the scaler's update."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.flow import Reach
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Kind
from ampwise.lint.protocol import at, is_loop_variable, skipped_updates
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss, iteration
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Edit, Example, Finding, Fix, Fixable, RuleInfo, Severity

_ASKED: Final = re.compile(r"unscaled|stage|_per_optimizer_states", re.IGNORECASE)
"""Of a condition that asks the scaler whether it has unscaled already."""
_MICRO: Final = """
with autocast("cuda"):
    loss = criterion(model(x), y) / 4
scaler.scale(loss).backward()
"""

INFO = RuleInfo(
    id="MP102",
    name="double-unscale",
    severity=Severity.ERROR,
    why="Gradients may be divided by the loss scale once per update: a second scaler.unscale_(optimizer) raises a "
    "RuntimeError. With gradient accumulation an unscale_ in every micro-batch does just that in the second one.",
    remedy="Call scaler.unscale_(optimizer) once per optimizer step, where the step is: under the same condition.",
    evidence="Measured with torch 2.13: RuntimeError 'unscale_() has already been called on this optimizer since the "
    "last update().' huggingface/accelerate#641, huggingface/transformers#23935.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            title="in every micro-batch, though the step comes in every fourth",
            source=iteration(
                _MICRO
                + """
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
if (i + 1) % 4 == 0:
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
            ),
            fixed=iteration(
                _MICRO
                + """
if (i + 1) % 4 == 0:
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
            ),
        ),
        Example(
            title="twice in a row",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
"""),
            fixed=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
"""),
        ),
    ),
    good=(
        Example(
            title="one for each optimizer",
            source=after_loss("""
scaler.scale(loss).backward()
for one in (optimizer, other_optimizer):
    scaler.unscale_(one)
scaler.step(optimizer)
scaler.step(other_optimizer)
scaler.update()
"""),
        ),
        Example(
            title="two optimizers",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.unscale_(model.optimizers[0])
scaler.unscale_(model.optimizers[1])
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="each under its own condition",
            source=after_loss("""
scaler.scale(loss).backward()
if use_amp:
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
if not use_amp:
    scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="where the micro-batches' step is",
            source=iteration(
                _MICRO
                + """
if (i + 1) % 4 == 0:
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
            ),
        ),
        Example(
            title="only if the scaler has not done so yet",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
if scaler._per_optimizer_states[id(optimizer)]["stage"] is not OptState.UNSCALED:
    scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="an update in a helper",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
finish(scaler, optimizer)

def finish(scaler, optimizer):
    scaler.step(optimizer)
    scaler.update()
"""),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every unscale_ that one of the same optimizer reaches with no update between."""
    left_to_mp122 = {skipped.last.scaler for skipped in skipped_updates(file)}
    reaches = file.flow.reached(start=_is_unscale, goal=_is_same, stop=_is_done)
    seen: set[ast.expr] = set()
    for reach in reaches:
        node = reach.goal.node if reach.start.via is reach.goal.via else at(reach.goal)
        if node in seen or reach.start.scaler in left_to_mp122 or not _is_certain(file, reach):
            continue
        seen.add(node)
        yield file.finding(INFO, node, _message(reach), fix=_fix(file, reach))


def _is_unscale(event: Event) -> bool:
    return event.act is Act.UNSCALE and event.optimizer is not None


def _is_same(start: Event, event: Event) -> bool:
    return event.act is Act.UNSCALE and event.scaler == start.scaler and event.optimizer == start.optimizer


def _is_done(start: Event, event: Event) -> bool:
    match event.act:
        case Act.UPDATE:
            return event.scaler == start.scaler
        case Act.UNSCALE:
            return _is_same(start, event)
        case Act.OPAQUE:
            return Kind.SCALER in event.handed
        case _:
            return False


def _is_certain(file: SourceFile, reach: Reach) -> bool:
    """Whether the update is in the walked code, and the two mean the same optimizer and scaler."""
    scaler, goal = reach.start.scaler, at(reach.goal)
    if any(
        isinstance(one, ast.If) and _ASKED.search(ast.unparse(one.test)) for one in file.tree.ancestors(reach.goal.node)
    ):
        return False
    if reach.start.via is not None and reach.start.via is reach.goal.via and reach.start.node is not reach.goal.node:
        return False  # two calls of one function, whose conditions need not have the same answers
    here = file.flow.events_in(reach.root)
    called = [event for one in here if one.callee is not None for event in file.flow.events_in(one.callee)]
    if not any(event.act is Act.UPDATE for event in (*here, *called)):
        return False
    return not is_loop_variable(file, reach.goal.optimizer, goal) and not is_loop_variable(file, scaler, goal)


def _message(reach: Reach) -> str:
    optimizer = reach.goal.optimizer
    if reach.start.node is reach.goal.node:
        return f"unscale_({optimizer}) comes again in the next round, before {reach.start.scaler}.update()"
    return f"the gradients of {optimizer} are unscaled already in line {at(reach.start).lineno}"


def _fix(file: SourceFile, reach: Reach) -> Fix | None:
    if reach.goal.via is not None or reach.start.via is not None:
        return None
    statement = file.tree.statement(reach.goal.node)
    if not isinstance(statement, ast.Expr):
        return None
    if reach.start.node is reach.goal.node:
        return _move(file, statement)
    first = file.tree.statement(reach.start.node)
    return fix(file.edit.delete(statement), safe=False) if statement in file.tree.block(first) else None


def _move(file: SourceFile, unscale: ast.stmt) -> Fix | None:
    """Move unscale_, with the clipping behind it, to the beginning of the `if` that steps."""
    block = file.tree.block(unscale)
    moved: list[ast.stmt] = []
    for statement in block[block.index(unscale) :]:
        if isinstance(statement, ast.If):
            acts = {event.act for inner in statement.body for event in file.flow.events_in(inner)}
            return _moved(file, moved, statement) if Act.STEP in acts else None
        acts = {event.act for event in file.flow.events_in(statement)}
        if not acts & {Act.UNSCALE, Act.CLIP} or statement.lineno != statement.end_lineno:
            return None
        moved.append(statement)
    return None


def _moved(file: SourceFile, moved: list[ast.stmt], branch: ast.If) -> Fix | None:
    edits: list[Edit | None] = [file.edit.delete(statement) for statement in moved]
    first = branch.body[0]
    lines = f"{file.text.newline}{' ' * first.col_offset}".join(file.text.segment(statement) for statement in moved)
    return fix(*edits, file.edit.insert_before(first, lines), safe=False)


RULE = Rule(info=INFO, check=check, words=("unscale_",), off_under=ALL_FRAMEWORKS)
