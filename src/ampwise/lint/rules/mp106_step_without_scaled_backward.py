"""MP106: a scaler steps an optimizer, but no loss was ever multiplied by its scale."""

import ast
from collections.abc import Iterator

from ampwise.lint.events import Act, Event
from ampwise.lint.flow import Reach
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.names import Bound
from ampwise.lint.protocol import is_scaler_handed_away
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

INFO = RuleInfo(
    id="MP106",
    name="step-without-scaled-backward",
    severity=Severity.ERROR,
    why="scaler.step(optimizer) divides the gradients by the loss scale. Where scaler.scale(loss) was never called it "
    "fails in the first iteration, or, if some other loss was scaled, makes updates thousands of times too small.",
    remedy="Call scaler.scale(loss).backward() instead of loss.backward().",
    evidence="Measured with torch 2.13: AssertionError 'Attempted step but _scale is None.'",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=after_loss("""
loss.backward()
scaler.step(optimizer)
scaler.update()
"""),
            fixed=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="while another loss is scaled: no error, and tiny updates",
            source=after_loss("""
loss.backward()
scaler.step(optimizer)
scaler.update()
""")
            + """
def warm_up(scaler, loss):
    scaler.scale(loss).backward()
""",
        ),
    ),
    good=(
        Example(
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="scaled by a helper",
            source=after_loss("""
backward(scaler, loss)
scaler.step(optimizer)
scaler.update()

def backward(scaler, loss):
    scaled = scaler.scale(loss)
    scaled.backward()
"""),
        ),
        Example(
            title="a method that returns a scaled loss",
            source="""
class Trainer:
    def loss(self, batch):
        return self.scaler.scale(self.model(batch))

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
""",
        ),
        Example(
            title="scaled by a function of another file",
            source=after_loss("""
scale_loss(scaler, loss).backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="the arm without AMP",
            source=after_loss("""
if use_amp:
    run_backward(loss)
    scaler.step(optimizer)
    scaler.update()
else:
    loss.backward()
    optimizer.step()
"""),
        ),
        Example(
            title="a scaler that is off",
            source=after_loss("""
loss.backward()
scaler.step(optimizer)
scaler.update()
""").replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)'),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Steps through a scaler that some backward reaches, and none of a scaled loss."""
    if "enabled=False" in file.text.text.replace(" ", "") or is_scaler_handed_away(file):
        return
    reaches = file.flow.reached(start=_is_backward, goal=_is_scaled_step, stop=_stops)
    fed = {reach.goal.node for reach in reaches if reach.start.is_scaled}
    seen: set[ast.expr] = set()
    for reach in reaches:
        goal = reach.goal
        if goal.node in fed | seen or not _is_scaler(file, goal) or _may_scale(file, reach):
            continue
        seen.add(goal.node)
        message = f"{goal.scaler}.step({goal.optimizer}), but no loss is multiplied by {goal.scaler}"
        yield file.finding(INFO, goal.node, message, fix=_fix(file, reach.start, goal))


def _may_scale(file: SourceFile, reach: Reach) -> bool:
    """Whether the loss may have been scaled where this walk does not see it."""
    scales = {"scale", "scale_loss", "_scale"}
    if not any(node.attr in scales for node in file.tree.nodes(ast.Attribute)):
        return False
    inside = {node.attr for node in file.tree.inside(reach.root, ast.Attribute)}
    node = reach.start.node
    if inside & scales or reach.start.via or reach.goal.via or not isinstance(node, ast.Call):
        return True
    bound = file.names.latest(node.func.value) if isinstance(node.func, ast.Attribute) else None
    is_local = bound is not None and bound.how is Bound.ASSIGN and file.tree.function(bound.node) is reach.root
    value = bound.value if is_local and bound is not None else None
    return value is None or any(file.names.function(call) for call in file.tree.inside(value, ast.Call))


def _is_backward(event: Event) -> bool:
    return event.act is Act.BACKWARD


def _is_scaled_step(_: Event, event: Event) -> bool:
    return event.act is Act.STEP and event.scaler is not None


def _stops(_: Event, event: Event) -> bool:
    return event.act is Act.STEP


def _is_scaler(file: SourceFile, event: Event) -> bool:
    match event.node:
        case ast.Call(func=ast.Attribute(value=owner)):
            return file.kinds.is_a(owner, Kind.SCALER, at_least=Confidence.USE)
        case _:
            return False


def _fix(file: SourceFile, start: Event, goal: Event) -> Fix | None:
    backwards = [event for event in file.flow.events if event.act is Act.BACKWARD]
    if len(backwards) > 1 or start.via or goal.via or not isinstance(start.node, ast.Call):
        return None
    match start.node.func:
        case ast.Attribute(value=ast.Name() | ast.Attribute() as loss):
            scaled = f"{goal.scaler}.scale({file.text.segment(loss)})"
            return fix(file.edit.replace(loss, scaled), safe=False)
        case _:
            return None


RULE = Rule(info=INFO, check=check, words=("GradScaler", "unscale_"), off_under=ALL_FRAMEWORKS)
