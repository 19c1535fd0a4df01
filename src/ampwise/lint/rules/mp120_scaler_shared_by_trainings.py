"""MP120: one scaler is used for several trainings, each with a model of its own."""

import ast
from collections.abc import Iterator

from ampwise.lint.events import Act
from ampwise.lint.guards import TRAINERS
from ampwise.lint.names import position
from ampwise.lint.protocol import builds_model, builds_training, constructions
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import Loop, dotted
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity


def _folds(before: str, within: str) -> str:
    return f"""
import torch
from torch.amp import GradScaler, autocast

def cross_validate(folds, criterion):
{before}    for fold in folds:
{within}        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        for epoch in range(10):
            for x, y in fold:
                optimizer.zero_grad()
                with autocast("cuda"):
                    loss = criterion(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
"""


INFO = RuleInfo(
    id="MP120",
    name="scaler-shared-by-trainings",
    severity=Severity.WARNING,
    why="The second training starts with the loss scale, and the count of finite steps, that the first one ended "
    "with: its first steps differ from a training of its own, and the result depends on the order.",
    remedy="Make a new GradScaler where each training makes its model and optimizer.",
    evidence="A GradScaler's state is its scale and growth tracker (GradScaler.state_dict()); both go on over "
    "scaler.update().",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_folds('    scaler = GradScaler("cuda")\n', ""),
            fixed=_folds("", '        scaler = GradScaler("cuda")\n'),
        ),
    ),
    good=(
        Example(title="one for each training", source=_folds("", '        scaler = GradScaler("cuda")\n')),
        Example(
            title="a new optimizer for the same model",
            source=_folds('    model = Net()\n    scaler = GradScaler("cuda")\n', "").replace(
                "        model = Net()\n", ""
            ),
        ),
        Example(
            title="reset for each training",
            source=_folds('    scaler = GradScaler("cuda")\n    fresh = scaler.state_dict()\n',
                          "        scaler.load_state_dict(fresh)\n"),
        ),
        Example(
            title="made when first needed",
            source=_folds('    scaler = GradScaler("cuda")\n', "        if fold:\n            scaler = GradScaler()\n"),
        ),
        Example(
            title="two models of one training",
            source="""
import torch
def train(loader, criterion):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    model = Net()
""",
        ),
    ),
)  # fmt: skip


def check(file: SourceFile) -> Iterator[Finding]:
    """Scalers made before a loop that makes a model and an optimizer, and trains, in every round."""
    for call in constructions(file):
        statement = file.tree.statement(call)
        name = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) else None
        if name is None:
            continue
        for loop in _loops_after(file, statement):
            if _trains_anew(file, loop, name):
                message = f"{name} keeps its loss scale from one training of this loop to the next"
                yield file.finding(INFO, loop.iter if isinstance(loop, ast.For) else loop, message,
                                   fix=_fix(file, statement, loop))  # fmt: skip
                break


def _loops_after(file: SourceFile, statement: ast.stmt) -> Iterator[Loop]:
    """The loops in the block of ``statement`` behind it."""
    for loop in file.tree.nodes(ast.For):
        if position(loop) > position(statement) and loop in file.tree.block(statement):
            yield loop


def _trains_anew(file: SourceFile, loop: Loop, scaler: str) -> bool:
    if not (builds_training(file, loop) and builds_model(file, loop)) or loop in file.loops.training:
        return False
    uses = False
    for node in file.tree.inside(loop, ast.Assign, ast.Call):
        if isinstance(node, ast.Assign) and any(dotted(target) == scaler for target in node.targets):
            return False
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "load_state_dict":
                return False if dotted(node.func.value) == scaler else uses
            uses = uses or _trains_with(file, node, scaler)
    return uses


def _trains_with(file: SourceFile, call: ast.Call, scaler: str) -> bool:
    """Whether a call steps with the scaler, or hands it on together with what is trained."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "step":
        return dotted(call.func.value) == scaler
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    callee = file.names.function(call)
    return any(dotted(one) == scaler for one in arguments) and (callee is None or Act.STEP in file.flow.acts_in(callee))


def _fix(file: SourceFile, statement: ast.stmt, loop: Loop) -> Fix | None:
    """Make the scaler in the loop, if it is not used outside."""
    block, first = file.tree.block(statement), loop.body[0]
    line = file.text.segment(statement)
    name = line.split("=")[0].strip()
    others = [one for one in block if one not in {statement, loop}]
    if "\n" in line or any(name in ast.unparse(one) for one in others):
        return None
    return fix(file.edit.delete(statement), file.edit.insert_before(first, line), safe=False)


RULE = Rule(info=INFO, check=check, words=("GradScaler",), off_under=TRAINERS)
