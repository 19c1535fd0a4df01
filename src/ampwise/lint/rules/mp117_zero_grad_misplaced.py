"""MP117: gradients are zeroed between backward and step, or never."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.names import position
from ampwise.lint.protocol import are_exclusive, at
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import iteration
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

_OTHER_GRADIENTS: Final = re.compile(
    r"\.grad\b(\.data)?\s*=[^=]|set_grad|backward_?hook|closure|manual_backward|first_step|second_step|perturb|attack"
)
_ZEROES: Final = re.compile(r"zero_?grad|grad\.(data\.)?(zero_|fill_)|\.grad\s*=|set_to_none|_foreach_zero_")

_STEP: Final = """
scaler.step(optimizer)
scaler.update()
"""
_LOSS: Final = """
with autocast("cuda"):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
"""
_MADE: Final = "    optimizer = torch.optim.AdamW(model.parameters())\n    scaler ="

INFO = RuleInfo(
    id="MP117",
    name="zero-grad-misplaced",
    severity=Severity.ERROR,
    why="zero_grad() between backward() and the step throws the gradients away: a scaler then stops with an "
    "AssertionError, a plain optimizer does nothing. Without any zero_grad() all gradients since the start add up.",
    remedy="Call optimizer.zero_grad() once per step: before backward(), or after the step.",
    evidence="Measured with torch 2.13: AssertionError 'No inf checks were recorded for this optimizer.'",
    bad=(
        Example(title="between backward and step", source=iteration(_LOSS + "optimizer.zero_grad()" + _STEP)),
        Example(title="never", source=iteration(_LOSS + _STEP).replace("    scaler =", _MADE)),
    ),
    good=(
        Example(source=iteration("optimizer.zero_grad()" + _LOSS + _STEP)),
        Example(title="after the step", source=iteration(_LOSS + _STEP + "optimizer.zero_grad()\n")),
        Example(
            title="an adversarial step whose gradients are thrown away",
            source=iteration(
                _LOSS
                + """
x = x + x.grad.sign()
optimizer.zero_grad()
"""
                + _LOSS
                + _STEP
            ),
        ),
        Example(
            title="another optimizer's gradients",
            source=iteration(_LOSS + "other_optimizer.zero_grad()" + _STEP + "optimizer.zero_grad()\n"),
        ),
        Example(
            title="a bad batch is thrown away",
            source=iteration(
                _LOSS
                + """
if not torch.isfinite(loss):
    optimizer.zero_grad()
    continue
"""
                + _STEP
                + "optimizer.zero_grad()\n"
            ),
        ),
        Example(
            title="set to None by hand",
            source=iteration("for p in model.parameters():\n    p.grad = None" + _LOSS + _STEP).replace(
                "    scaler =", _MADE
            ),
        ),
        Example(
            title="zeroed by a helper elsewhere",
            source=iteration("prepare(optimizer)" + _LOSS + _STEP).replace("    scaler =", _MADE),
        ),
        Example(title="an optimizer of unknown make, which may zero itself", source=iteration(_LOSS + _STEP)),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Each zero_grad that undoes a backward; each optimizer of torch that steps in a loop and is never zeroed."""
    yield from _between(file)
    yield from _never(file)


def _between(file: SourceFile) -> Iterator[Finding]:
    zeroes = [event for event in file.flow.events if event.act is Act.ZERO_GRAD]
    if not _may_be_between(file, zeroes) or _OTHER_GRADIENTS.search(file.text.text):
        return
    reaches = file.flow.reached(start=_is_backward, goal=lambda _, event: event.act is Act.ZERO_GRAD, stop=_stops)
    undone = {reach.goal.node for reach in reaches if _in_one_round(file, reach.start, reach.goal)}
    seen: set[ast.expr] = set()
    for reach in file.flow.reached(start=lambda event: event.node in undone, goal=_steps_it, stop=_recovers):
        node = reach.start.node
        if node not in seen and _in_one_round(file, reach.start, reach.goal):
            seen.add(node)
            message = f"{reach.start.optimizer}.zero_grad() throws away the gradients that the step in line "
            yield file.finding(INFO, node, f"{message}{at(reach.goal).lineno} is to use")


def _may_be_between(file: SourceFile, zeroes: list[Event]) -> bool:
    """Whether some zero_grad stands behind a backward and before a step, with no backward between: a cheap look."""
    events = [event for event in file.flow.events if event.act in {Act.BACKWARD, Act.STEP, Act.ZERO_GRAD, Act.CALL}]
    return bool(zeroes) and any(
        one.act in {Act.BACKWARD, Act.CALL}
        and two.act in {Act.ZERO_GRAD, Act.CALL}
        and three.act in {Act.STEP, Act.CALL}
        for one, two, three in zip(events, events[1:], events[2:], strict=False)
    )


def _is_backward(event: Event) -> bool:
    return event.act is Act.BACKWARD


def _stops(_: Event, event: Event) -> bool:
    return event.act in {Act.STEP, Act.ZERO_GRAD}


def _steps_it(start: Event, event: Event) -> bool:
    return event.act is Act.STEP and event.optimizer is not None and event.optimizer == start.optimizer


def _recovers(_: Event, event: Event) -> bool:
    return event.act in {Act.BACKWARD, Act.STEP, Act.OPAQUE, Act.FORWARD}


def _in_one_round(file: SourceFile, first: Event, second: Event) -> bool:
    one, two = at(first), at(second)
    is_same = file.tree.loops(one)[:1] == file.tree.loops(two)[:1] and position(one) < position(two)
    return is_same and not are_exclusive(file, one, two)


def _never(file: SourceFile) -> Iterator[Finding]:
    events = file.flow.events
    if any(
        event.act is Act.ZERO_GRAD or (event.act is Act.OPAQUE and Kind.OPTIMIZER in event.handed) for event in events
    ):
        return
    if _ZEROES.search(file.text.text):
        return
    seen: set[str | None] = set()
    for event in events:
        loop = next((one for one in file.tree.loops(event.node) if one in file.loops.training), None)
        if event.act is not Act.STEP or event.optimizer in seen or loop is None or not _is_plain(file, event):
            continue
        seen.add(event.optimizer)
        yield file.finding(INFO, event.node, f"nothing ever zeroes the gradients of {event.optimizer}")


def _is_plain(file: SourceFile, event: Event) -> bool:
    """Whether the optimizer is torch's own: another may zero gradients itself."""
    call = event.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    optimizer = call.func.value if event.scaler is None else next(iter(call.args), call)
    value = file.kinds.of(optimizer)
    is_made = value.kind is Kind.OPTIMIZER and value.confidence is Confidence.MADE
    return is_made and (value.origin or "").startswith("torch.optim.")


RULE = Rule(info=INFO, check=check, words=(".step(",), off_under=ALL_FRAMEWORKS)
