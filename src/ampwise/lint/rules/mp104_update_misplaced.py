"""MP104: one scaler is updated more than once per iteration, or between the steps of two optimizers."""

import ast
from collections.abc import Iterator

from ampwise.lint.events import Act, Event
from ampwise.lint.flow import Reach
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Kind
from ampwise.lint.names import position
from ampwise.lint.protocol import are_exclusive, at, is_loop_variable
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_GAN = """
scaler.scale(loss_d).backward()
scaler.step(optimizer_d)
{between}scaler.scale(loss_g).backward()
scaler.step(optimizer_g)
scaler.update()
"""

INFO = RuleInfo(
    id="MP104",
    name="update-misplaced",
    severity=Severity.WARNING,
    why="scaler.update() counts finite iterations and changes the scale. Called after each of several optimizers it "
    "counts double, so that the scale grows and shrinks too fast, and what was scaled before is unscaled with a scale "
    "that may have changed.",
    remedy="Call scaler.update() once, after the last step of the iteration; or give each optimizer a scaler.",
    evidence="Measured with torch 2.13: two optimizers, an update after each, growth_interval 4: after 8 iterations "
    "the scale is 16384 instead of 4096. PyTorch's AMP examples, 'Working with Multiple Models, Losses, and "
    "Optimizers'.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            title="after each of two optimizers",
            source=after_loss(_GAN.format(between="scaler.update()\n")),
            fixed=after_loss(_GAN.format(between="")),
        ),
        Example(
            title="in the loop over the optimizers",
            source=after_loss("""
scaler.scale(loss).backward()
for one in model.optimizers:
    scaler.step(one)
    scaler.update()
"""),
            fixed=after_loss("""
scaler.scale(loss).backward()
for one in model.optimizers:
    scaler.step(one)
scaler.update()
"""),
        ),
        Example(
            title="between the steps",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
scaler.step(other_optimizer)
"""),
        ),
    ),
    good=(
        Example(title="once, at the end", source=after_loss(_GAN.format(between=""))),
        Example(
            title="one scaler for each optimizer",
            source=after_loss("""
scaler_d.scale(loss_d).backward()
scaler_d.step(optimizer_d)
scaler_d.update()
scaler_g.scale(loss_g).backward()
scaler_g.step(optimizer_g)
scaler_g.update()
"""),
        ),
        Example(
            title="pairs of optimizer and scaler",
            source=after_loss("""
for one, its_scaler in zip(model.optimizers, model.scalers):
    its_scaler.scale(loss).backward()
    its_scaler.step(one)
    its_scaler.update()
"""),
        ),
        Example(
            title="in arms that exclude each other",
            source=after_loss("""
scaler.scale(loss).backward()
if i % 2 == 0:
    scaler.step(optimizer_d)
    scaler.update()
else:
    scaler.step(optimizer_g)
    scaler.update()
"""),
        ),
        Example(
            title="two iterations of one optimizer",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
scaler.scale(model.second_loss(x)).backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="a scale set by hand",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
if i % 100 == 0 and scaler.get_scale() < 1.0:
    scaler.update(1.0)
"""),
        ),
        Example(
            title="after a jump",
            source=after_loss("""
scaler.scale(loss).backward()
if use_amp:
    scaler.step(optimizer)
    scaler.update()
    continue
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="an inner loop that is a training of its own",
            source=after_loss("""
for _ in range(5):
    scaler.scale(criterion(model(x), y)).backward()
    scaler.step(optimizer_d)
    scaler.update()
scaler.scale(loss).backward()
scaler.step(optimizer_g)
scaler.update()
"""),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Updates that come too often, or before the last step."""
    seen: set[ast.expr] = set()
    reaches = (*_twice(file), *_before_step(file)) if _is_suspect(file) else ()
    for reach in reaches:
        node = at(reach.start)
        if node not in seen and _is_one_round(file, reach):
            seen.add(node)
            yield file.finding(INFO, node, _message(reach), fix=_fix(file, reach))
    for event in file.flow.events:
        loop = _over_optimizers(file, event)
        if loop is not None and event.node not in seen:
            message = f"{event.scaler}.update() runs after every optimizer's step instead of after the last"
            yield file.finding(INFO, event.node, message, fix=_behind(file, event, loop))


def _twice(file: SourceFile) -> list[Reach]:
    return file.flow.reached(
        start=_is_update,
        goal=lambda start, event: _is_update(event) and event.scaler == start.scaler,
        stop=lambda start, event: _is_update(event) and event.scaler == start.scaler,
    )


def _before_step(file: SourceFile) -> list[Reach]:
    return file.flow.reached(
        start=_is_update,
        goal=lambda start, event: event.act is Act.STEP and event.scaler == start.scaler,
        stop=lambda _, event: (
            event.act in {Act.BACKWARD, Act.UPDATE, Act.STEP}
            or (event.act is Act.OPAQUE and bool({Kind.SCALER, Kind.MODULE} & event.handed))
        ),
    )


def _is_suspect(file: SourceFile) -> bool:
    """Whether a look along the paths can find anything: two updates, or a step behind one."""
    updates = [position(event.node) for event in file.flow.events if _is_update(event)]
    steps = [position(event.node) for event in file.flow.events if event.act is Act.STEP and event.scaler is not None]
    return len(updates) > 1 or (bool(updates) and any(step > updates[0] for step in steps))


def _is_update(event: Event) -> bool:
    """Whether a scaler adapts; ``update(new_scale)`` sets its scale by hand."""
    is_adapting = isinstance(event.node, ast.Call) and not event.node.args and not event.node.keywords
    return event.act is Act.UPDATE and event.scaler is not None and is_adapting


def _is_one_round(file: SourceFile, reach: Reach) -> bool:
    """Whether both happen in the same iteration, with the same scaler."""
    first, second = at(reach.start), at(reach.goal)
    loop = next(iter(file.tree.loops(first)), None)
    if position(first) >= position(second) or loop is not next(iter(file.tree.loops(second)), None):
        return False
    if is_loop_variable(file, reach.start.scaler, first) or are_exclusive(file, first, second):
        return False
    if reach.goal.act is Act.UPDATE and _steps_one_optimizer(file, reach):
        return False
    function = file.tree.function(first)
    return loop in file.loops.training or (loop is None and function is not None and function in file.loops.iterations)


def _steps_one_optimizer(file: SourceFile, reach: Reach) -> bool:
    """Whether both updates close an iteration of the same optimizer: then the loop holds several iterations."""
    here = file.flow.events_in(reach.root)
    called = [one for event in here if event.callee is not None for one in file.flow.events_in(event.callee)]
    steps = [event for event in (*here, *called) if event.act is Act.STEP and event.scaler is not None]
    return len(steps) > 1 and len({event.optimizer for event in steps}) == 1


def _message(reach: Reach) -> str:
    scaler, line = reach.start.scaler, at(reach.goal).lineno
    if reach.goal.act is Act.STEP:
        return f"{scaler}.update() comes before the step of {reach.goal.optimizer} in line {line}"
    return f"{scaler}.update() runs again in line {line}: its scale adapts twice per iteration"


def _over_optimizers(file: SourceFile, event: Event) -> ast.For | None:
    """The loop over optimizers in which one scaler, not the loop's own, is updated."""
    loop = next(iter(file.tree.loops(event.node)), None)
    if event.act is not Act.UPDATE or not isinstance(loop, ast.For) or is_loop_variable(file, event.scaler, event.node):
        return None
    bound = {node.id for node in file.tree.inside(loop.target, ast.Name)}
    inside = file.flow.events_in(loop)
    steps = [one for one in inside if one.act is Act.STEP and one.scaler == event.scaler]
    is_own = any(one.act is Act.BACKWARD for one in inside)
    return loop if steps and not is_own and all(_is_of(one.optimizer, bound) for one in steps) else None


def _is_of(optimizer: str | None, bound: set[str]) -> bool:
    return optimizer is not None and (optimizer in bound or any(optimizer.endswith(f"[{name}]") for name in bound))


def _fix(file: SourceFile, reach: Reach) -> Fix | None:
    """Drop the earlier of two updates in one block."""
    first, second = file.tree.statement(reach.start.node), file.tree.statement(reach.goal.node)
    is_plain = reach.start.via is None and reach.goal.via is None and isinstance(first, ast.Expr)
    if not is_plain or reach.goal.act is Act.STEP or second not in file.tree.block(first):
        return None
    return fix(file.edit.delete(first), safe=False)


def _behind(file: SourceFile, event: Event, loop: ast.For) -> Fix | None:
    statement = file.tree.statement(event.node)
    if loop.body[-1] is not statement or len(loop.body) < 2 or not isinstance(statement, ast.Expr):
        return None
    return fix(*file.edit.dedent([statement], levels_from=loop), safe=False)


RULE = Rule(info=INFO, check=check, words=(".update(",), off_under=ALL_FRAMEWORKS)
