"""MP107: a new GradScaler is made for every batch or every epoch."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.guards import TRAINERS
from ampwise.lint.names import Bound
from ampwise.lint.protocol import builds_training, constructions
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import TRAIN
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import FUNCTIONS, Function, Loop
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_EPOCH_NAME: Final = re.compile(r"\w*(one|per|single|each)_?epoch\w*|(train|fit|run)_?epoch(_\w+)?|epoch_?(train|step)")
_EPOCH_PARAMETER: Final = re.compile(r"(cur(rent)?_)?epoch(_?(i|idx|index|num|number|id|no))?|i_epoch")
_OWN_TRAINING: Final = re.compile(r"fold|seed|trial|run|repeat|experiment|split|task|config|param", re.IGNORECASE)

_ITERATION: Final = """
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
_IMPORTS: Final = """
import torch
from torch.amp import GradScaler, autocast
"""

INFO = RuleInfo(
    id="MP107",
    name="scaler-recreated",
    severity=Severity.WARNING,
    why="A new GradScaler starts at 65536 again and forgets how far it had backed off: each one first overflows and "
    "skips steps until it has found the scale once more. One for each batch can never adapt at all.",
    remedy="Make one GradScaler for the whole training, before the loop over epochs, and hand it on.",
    evidence="PyTorch's AMP examples: 'Creates a GradScaler once at the beginning of training.'",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            title="for every batch",
            source=TRAIN.replace('    scaler = GradScaler("cuda")\n', "")
            + """
        scaler = GradScaler("cuda")
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
            fixed=TRAIN.replace('    scaler = GradScaler("cuda")\n', "").replace(
                "    for i", '    scaler = GradScaler("cuda")\n    for i'
            )
            + """
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        Example(
            title="for every epoch",
            source=_IMPORTS
            + """
def train(model, optimizer, loader, criterion):
    for epoch in range(10):
        scaler = GradScaler("cuda")"""
            + _ITERATION,
            fixed=_IMPORTS
            + """
def train(model, optimizer, loader, criterion):
    scaler = GradScaler("cuda")
    for epoch in range(10):"""
            + _ITERATION,
        ),
        Example(
            title="in a function that is called for every epoch",
            source=_IMPORTS
            + """
def train(model, optimizer, loader, criterion):
    if model is not None:
        scaler = GradScaler("cuda")"""
            + _ITERATION
            + """
for epoch in range(10):
    train(model, optimizer, loader, criterion)
""",
        ),
        Example(
            title="in a function that is plainly one epoch",
            source=_IMPORTS
            + """
def train_one_epoch(model, optimizer, loader, criterion, epoch):
    if model is not None:
        scaler = GradScaler("cuda")"""
            + _ITERATION,
        ),
        Example(
            title="in one of several functions for an epoch",
            source=_IMPORTS
            + """
def train_epoch_large(model, optimizer, loader, criterion):
    if model is not None:
        scaler = GradScaler("cuda")"""
            + _ITERATION,
        ),
    ),
    good=(
        Example(
            source=_IMPORTS
            + """
def train(model, optimizer, loader, criterion):
    scaler = GradScaler("cuda")
    for epoch in range(10):"""
            + _ITERATION,
        ),
        Example(
            title="each fold is a training of its own",
            source=_IMPORTS
            + """
for fold in range(5):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = GradScaler("cuda")
    for epoch in range(10):"""
            + _ITERATION,
        ),
        Example(
            title="made for one phase of several",
            source=_IMPORTS
            + """
for index, (train_ids, test_ids) in enumerate(parts):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for phase in ["train", "test"]:
        if phase == "train":
            scaler = GradScaler("cuda")
            for epoch in range(10):"""
            + _ITERATION.replace("\n        ", "\n                "),
        ),
        Example(
            title="a training function that is called for each trial",
            source=_IMPORTS
            + """
def train(model, loader, criterion, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scaler = GradScaler("cuda")
    for epoch in range(10):"""
            + _ITERATION
            + """
for lr in (1e-3, 1e-4):
    train(Net(), loader, criterion, lr)
""",
        ),
        Example(
            title="made once, when first needed",
            source=_IMPORTS
            + """
def train_one_epoch(self, model, optimizer, loader, criterion, epoch):
    if self.scaler is None:
        self.scaler = GradScaler("cuda")
    scaler = self.scaler
    if model:"""
            + _ITERATION,
        ),
        Example(
            title="switched off for good",
            source=_IMPORTS
            + """
def train_one_epoch(model, optimizer, loader, criterion, epoch):
    scaler = GradScaler("cuda", enabled=False)
    if model:"""
            + _ITERATION,
        ),
        Example(
            title="a whole training, with its own epochs",
            source=_IMPORTS
            + """
def fit(model, optimizer, loader, criterion):
    scaler = GradScaler("cuda")
    for epoch in range(10):"""
            + _ITERATION
            + """
def main(seeds):
    for seed in seeds:
        fit(*build(seed), criterion)
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every construction of a scaler that is repeated within one training."""
    for call in constructions(file):
        if _is_lazy(file, call):
            continue
        loop = _training_loop(file, call)
        if loop is not None:
            is_batch = file.tree.loops(call)[0] in file.loops.training
            yield file.finding(
                INFO,
                call,
                f"a new GradScaler for every {'batch' if is_batch else 'epoch'} forgets the loss scale",
                severity=Severity.ERROR if is_batch else None,
                fix=_fix(file, call, loop),
            )
        elif (function := _epoch_function(file, call)) is not None:
            yield file.finding(INFO, call, f"{function.name}() makes a new GradScaler every time it is called")


def _is_lazy(file: SourceFile, call: ast.Call) -> bool:
    """Whether it is made only where there is none yet."""
    names = re.compile(r"scaler|first|init|epoch == |step == |== 0", re.IGNORECASE)
    tests = [outer.test for outer in file.tree.ancestors(call) if isinstance(outer, ast.If | ast.IfExp)]
    return any(names.search(ast.unparse(test)) for test in tests)


def _training_loop(file: SourceFile, call: ast.Call) -> Loop | None:
    """The outermost loop around ``call`` that repeats within one training; None where it is made once."""
    found: Loop | None = None
    for loop in file.tree.loops(call):
        is_own = builds_training(file, loop) or _is_own_training(loop)
        if is_own or not any(loop is inner or loop in file.tree.loops(inner) for inner in file.loops.training):
            break
        if not _is_over_words(loop):
            found = loop
    return found


def _is_over_words(loop: Loop) -> bool:
    """Whether a loop goes through words, as ``for phase in ["train", "val"]``: each names another thing to do."""
    if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.List | ast.Tuple):
        return False
    return all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in loop.iter.elts)


def _is_own_training(loop: Loop) -> bool:
    head = ast.unparse(loop.target) if isinstance(loop, ast.For | ast.AsyncFor) else ""
    return bool(_OWN_TRAINING.search(head))


def _epoch_function(file: SourceFile, call: ast.Call) -> Function | None:
    """The function around ``call`` if it is one epoch, or one iteration, of a training whose optimizer it is given."""
    function = file.tree.function(call)
    if function is None or function.name == "__init__" or builds_training(file, function):
        return None
    own = [loop for loop in file.loops.training if file.tree.function(loop) is function]
    if function not in file.loops.iterations and not own:
        return None
    if any(len(file.tree.loops(loop)) > 0 for loop in own) or not _is_used(file, call):
        return None
    return function if _is_called_per_epoch(file, function) else None


def _is_used(file: SourceFile, call: ast.Call) -> bool:
    statement = file.tree.statement(call)
    return isinstance(statement, ast.Assign | ast.AnnAssign)


def _is_called_per_epoch(file: SourceFile, function: Function) -> bool:
    parameters = [*function.args.args, *function.args.kwonlyargs]
    if _EPOCH_NAME.fullmatch(function.name) or any(_EPOCH_PARAMETER.fullmatch(one.arg) for one in parameters):
        return True
    for call in file.flow.callers(function):
        loops = file.tree.loops(call)
        if loops and not _is_own_training(loops[0]) and not builds_training(file, loops[0]):
            return not any(isinstance(argument, ast.Call | ast.Starred) for argument in call.args)
    return False


def _fix(file: SourceFile, call: ast.Call, loop: Loop) -> Fix | None:
    """Move the assignment before the loop, if nothing in it changes there."""
    statement = file.tree.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call or statement not in _straight(loop, file):
        return None
    for name in file.tree.inside(call, ast.Name):
        bound = file.names.lookup(name)
        if any(one.how is not Bound.IMPORT and loop in _around(file, one.node) for one in bound):
            return None
    line = file.text.segment(statement)
    if "\n" in line:
        return None
    return fix(file.edit.delete(statement), file.edit.insert_before(loop, line), safe=False)


def _straight(loop: Loop, file: SourceFile) -> list[ast.stmt]:
    """The statements that run in every round of ``loop`` and the loops within it."""
    found: list[ast.stmt] = []
    for statement in loop.body:
        found.append(statement)
        if isinstance(statement, ast.For | ast.While | ast.With):
            found.extend(inner for inner in ast.walk(statement) if isinstance(inner, ast.stmt)
                         and not _is_nested(file, inner, statement))  # fmt: skip
    return found


def _is_nested(file: SourceFile, inner: ast.stmt, outer: ast.stmt) -> bool:
    for around in file.tree.ancestors(inner):
        if around is outer:
            return False
        if isinstance(around, (ast.If, ast.Try, *FUNCTIONS)):
            return True
    return True


def _around(file: SourceFile, node: ast.AST) -> list[ast.AST]:
    return [node, *file.tree.ancestors(node)]


RULE = Rule(info=INFO, check=check, words=("GradScaler",), off_under=TRAINERS)
