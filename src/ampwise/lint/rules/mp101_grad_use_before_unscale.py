"""MP101: gradients are clipped or measured while they are still multiplied by the loss scale."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.flow import Reach
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Kind
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_STEP: Final = """
import torch
from torch.amp import GradScaler, autocast

def train(model, optimizer, loader, criterion, max_norm, use_amp):
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
"""

INFO = RuleInfo(
    id="MP101",
    name="grad-use-before-unscale",
    severity=Severity.ERROR,
    why="After scaler.scale(loss).backward() all gradients are multiplied by the loss scale, 65536 at first. Clipping "
    "them to a norm of 1 before scaler.unscale_(optimizer) makes every update thousands of times too small: "
    "training silently stops.",
    remedy="Call scaler.unscale_(optimizer) once, right before the gradients are used; scaler.step() then knows it.",
    evidence="Measured with torch 2.13: clip_grad_norm_(1.0) without unscale_ gives an update of norm 1.4e-05 instead "
    "of 0.94. PyTorch's AMP examples, 'Gradient clipping'; pytorch/examples#1196.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source=_STEP
            + """
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
""",
            fixed=_STEP
            + """
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="on the path where the flag is off",
            source=_STEP
            + """
        scaler.scale(loss).backward()
        if use_amp:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="a norm taken by hand",
            source=_STEP
            + """
        scaler.scale(loss).backward()
        norm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
        scaler.step(optimizer)
        scaler.update()
""",
            fixed=_STEP
            + """
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
        scaler.step(optimizer)
        scaler.update()
""",
        ),
    ),
    good=(
        Example(
            source=_STEP
            + """
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="the arm without AMP",
            source=_STEP
            + """
        if use_amp:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if use_amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
        ),
        Example(
            title="a linear edit, which a common factor passes through",
            source=_STEP
            + """
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad /= 4
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="read after the step, which has unscaled",
            source=_STEP
            + """
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(model.weight.grad.norm())
""",
        ),
        Example(
            title="a helper that unscales",
            source=_STEP
            + """
        scaler.scale(loss).backward()
        unscale(scaler, optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()

def unscale(s, o):
    s.unscale_(o)
""",
        ),
        Example(
            title="a check for finite gradients",
            source=_STEP
            + """
        scaler.scale(loss).backward()
        ok = all(torch.isfinite(p.grad).all() for p in model.parameters())
        scaler.step(optimizer)
        scaler.update()
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every use of gradients that a scaled backward reaches with no unscale_ or step between."""
    seen: set[ast.stmt] = set()
    for reach in file.flow.reached(start=_starts, goal=_uses, stop=_stops):
        statement = file.tree.statement(reach.goal.node)
        if statement not in seen:
            seen.add(statement)
            yield file.finding(INFO, reach.goal.node, _message(reach), severity=_severity(reach), fix=_fix(file, reach))


def _starts(event: Event) -> bool:
    return event.act is Act.BACKWARD and event.is_scaled


def _uses(_: Event, event: Event) -> bool:
    return event.act in {Act.CLIP, Act.GRAD_USE}


def _stops(start: Event, event: Event) -> bool:
    match event.act:
        case Act.UNSCALE:
            return event.scaler == start.scaler
        case Act.STEP | Act.ZERO_GRAD:
            return True
        case Act.OPAQUE:
            return Kind.SCALER in event.handed
        case _:
            return False


def _message(reach: Reach) -> str:
    scaler, goal = reach.start.scaler or "scaler", reach.goal
    if goal.act is Act.CLIP and isinstance(goal.node, ast.Call):
        what = f"{ast.unparse(goal.node.func).rpartition('.')[2]}() sees gradients"
    else:
        what = f"{ast.unparse(goal.node)} is"
    return f"{what} still multiplied by the loss scale: {scaler}.unscale_(optimizer) must come before"


def _severity(reach: Reach) -> Severity:
    """A norm that is only looked at is a wrong figure, not wrong training."""
    return Severity.ERROR if reach.goal.act is Act.CLIP else Severity.WARNING


def _fix(file: SourceFile, reach: Reach) -> Fix | None:
    """Insert unscale_ where every path to the use needs it, and one optimizer is known."""
    node, scaler = reach.goal.node, reach.start.scaler
    if reach.goal.via is not None or reach.start.via is not None or scaler is None:
        return None
    events = file.flow.events_in(reach.root)
    optimizers = {event.optimizer for event in events if event.act is Act.STEP and event.scaler == scaler}
    if len(optimizers) != 1 or any(event.act is Act.UNSCALE for event in events) or _is_shared(file, reach):
        return None
    return fix(file.edit.insert_before(file.tree.statement(node), f"{scaler}.unscale_({optimizers.pop()})"), safe=True)


def _is_shared(file: SourceFile, reach: Reach) -> bool:
    """Whether an unscaled backward reaches the same use, or the use comes again before a step."""
    node = reach.goal.node
    again = file.flow.reached(
        start=lambda event: event.node is node or (event.act is Act.BACKWARD and not event.is_scaled),
        goal=lambda _, event: event.node is node,
        stop=lambda _, event: event.act is Act.STEP,
    )
    return bool(again)


RULE = Rule(info=INFO, check=check, words=("clip_grad", "grad_norm", ".grad"), off_under=ALL_FRAMEWORKS)
