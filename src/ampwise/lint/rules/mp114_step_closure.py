"""MP114: a scaler is to step an optimizer that needs a closure."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.names import Bound
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

_CLOSURE: Final = re.compile(r"\w*closure\w*", re.IGNORECASE)

INFO = RuleInfo(
    id="MP114",
    name="step-closure",
    severity=Severity.ERROR,
    why="A closure computes loss and gradients again within the step, where the scaler can neither unscale them nor "
    "look for inf: GradScaler.step refuses a closure, and LBFGS cannot step without one.",
    remedy="Train with LBFGS, or any optimizer that needs a closure, in fp32 or bfloat16 without a scaler.",
    evidence="torch's GradScaler.step: 'Closure use is not currently supported if GradScaler is enabled.'",
    bad=(
        Example(
            source=after_loss("""
def closure():
    optimizer.zero_grad()
    return criterion(model(x), y)

scaler.scale(loss).backward()
scaler.step(optimizer, closure)
scaler.update()
"""),
        ),
        Example(
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""").replace("    scaler =", "    optimizer = torch.optim.LBFGS(model.parameters())\n    scaler ="),
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
            title="without a scaler",
            source="""
import torch
def fit(model, loss_of):
    optimizer = torch.optim.LBFGS(model.parameters())
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
        ),
        Example(
            title="a wrapper that hands on what it is given",
            source="""
class Wrapped:
    def step(self, closure=None):
        self.scaler.step(self.optimizer, closure)
        self.scaler.update()
""",
        ),
        Example(
            title="another argument",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer, grad_scale=None)
scaler.update()
"""),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every step through a scaler with a closure, or of an optimizer that cannot do without."""
    for event in file.flow.events:
        if event.act is not Act.STEP or event.scaler is None or not isinstance(event.node, ast.Call):
            continue
        if any(_is_closure(file, argument) for argument in _rest(event.node)):
            yield file.finding(INFO, event.node, f"{event.scaler}.step() takes no closure")
        elif _is_lbfgs(file, event):
            yield file.finding(INFO, event.node, f"{event.optimizer} is LBFGS, which needs a closure to step")


def _rest(call: ast.Call) -> list[ast.expr]:
    return [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg != "optimizer")]


def _is_closure(file: SourceFile, argument: ast.expr) -> bool:
    if isinstance(argument, ast.Lambda):
        return True
    if not isinstance(argument, ast.Name):
        return False
    bound = file.names.latest(argument)
    if bound is not None and bound.how is Bound.PARAMETER:
        return False  # a wrapper of optimizers hands on what it is given, mostly None
    return bool(_CLOSURE.fullmatch(argument.id)) or (bound is not None and bound.how is Bound.FUNCTION)


def _is_lbfgs(file: SourceFile, event: Event) -> bool:
    call = event.node
    if not isinstance(call, ast.Call) or not call.args:
        return False
    value = file.kinds.of(call.args[0])
    is_made = value.kind is Kind.OPTIMIZER and value.confidence is Confidence.MADE
    return is_made and (value.origin or "").endswith(".LBFGS")


RULE = Rule(info=INFO, check=check, words=(".step(",), off_under=ALL_FRAMEWORKS)
