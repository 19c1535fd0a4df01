"""MP103: a scaler steps in every iteration, and nothing ever updates it."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.protocol import is_scaler_handed_away
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_HOOK: Final = re.compile(r"call_?back|hook|notify|emit|fire", re.IGNORECASE)

INFO = RuleInfo(
    id="MP103",
    name="missing-update",
    severity=Severity.ERROR,
    why="scaler.update() closes an iteration: it adjusts the loss scale and forgets which optimizers have stepped. "
    "Without it the second scaler.step(optimizer) raises a RuntimeError.",
    remedy="Call scaler.update() once per iteration, after the last scaler.step().",
    evidence="Measured with torch 2.13: RuntimeError 'step() has already been called since the last update().' in the "
    "second iteration.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
"""),
            fixed=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""),
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
            title="a method that its callers, perhaps elsewhere, follow with an update",
            source="""
class Model:
    def optimize(self, scaler, loss):
        self.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
""",
        ),
        Example(
            title="updated by a function of another file",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
finish_iteration(scaler)
"""),
        ),
        Example(
            title="updated by a callback",
            source="""
def fit(self, loader):
    for batch in loader:
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss(batch)).backward()
        self.scaler.step(self.optimizer)
        self.call_hook("after_iteration")
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """The last step of each scaler that steps in a training loop of a file without any update."""
    events = file.flow.events
    scaled = [event for event in events if event.act is Act.STEP and event.scaler is not None]
    if not scaled or any(event.act is Act.UPDATE for event in events) or is_scaler_handed_away(file):
        return
    last = {event.scaler: event for event in scaled if _is_repeated(file, event)}
    for scaler, event in last.items():
        yield file.finding(INFO, event.node, f"nothing ever calls {scaler}.update()", fix=_fix(file, event))


def _is_repeated(file: SourceFile, event: Event) -> bool:
    hot = file.loops.hot(event.node)
    if hot is None or hot.loop is None:
        return False
    calls = [*file.tree.inside(hot.loop, ast.Call)]
    if hot.function is not None and hot.via is not None:
        calls += file.tree.inside(hot.function, ast.Call)
    return not any(_may_update(file, call) for call in calls)


def _may_update(file: SourceFile, call: ast.Call) -> bool:
    """Whether a call may update the scaler unseen: a hook, a method that is not here, or one given ``self``."""
    if isinstance(call.func, ast.Attribute) and (call.func.attr == "update" or _HOOK.search(call.func.attr)):
        return True
    if any(isinstance(argument, ast.Name) and argument.id == "self" for argument in call.args):
        return True
    owner = file.tree.class_(call)
    is_own = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in {"self", "cls"}
    return is_own and file.names.function(call) is None and owner is not None and any(file.names.bases(owner))


def _fix(file: SourceFile, event: Event) -> Fix | None:
    statement = file.tree.statement(event.node)
    if not isinstance(statement, ast.Expr):
        return None
    return fix(file.edit.insert_after(statement, f"{event.scaler}.update()"), safe=True)


RULE = Rule(info=INFO, check=check, words=(".step(",), off_under=ALL_FRAMEWORKS)
