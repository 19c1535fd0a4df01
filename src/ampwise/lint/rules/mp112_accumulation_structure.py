"""MP112: gradient accumulation that throws gradients away, never accumulates, or leaves a tail behind."""

import ast
from collections.abc import Iterator

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.protocol import at
from ampwise.lint.rule import Rule
from ampwise.lint.rules.mp111_accumulation_not_divided import ACCUMULATE_WORD
from ampwise.lint.rules.snippets import iteration
from ampwise.lint.source import SourceFile
from ampwise.lint.tree import Loop, dotted
from ampwise.records.finding import Example, Finding, RuleInfo, Severity


def _loop(first: str, condition: str, *, after: str = "    optimizer.zero_grad()\n") -> str:
    return iteration(f"""
{first}with autocast("cuda"):
    loss = criterion(model(x), y) / accum_steps
scaler.scale(loss).backward()
{condition}    scaler.step(optimizer)
    scaler.update()
{after}""")


_MICRO = "if (i + 1) % accum_steps == 0:\n"
_LAST = "if (i + 1) % accum_steps == 0 or i + 1 == len(loader):\n"

INFO = RuleInfo(
    id="MP112",
    name="accumulation-structure",
    severity=Severity.WARNING,
    why="Gradients add up only from one zero_grad() to the step: zeroed in every micro-batch, all but the last are "
    "thrown away; stepped in every micro-batch, each update is too small by the number they were divided by.",
    remedy="Put step, update and zero_grad under one condition, which holds for the last batch too, and divide the "
    "loss by the same number.",
    evidence="PyTorch's AMP examples, 'Gradient accumulation'.",
    bad=(
        Example(title="zeroed in every micro-batch", source=_loop("optimizer.zero_grad()\n", _MICRO, after="")),
        Example(title="the last window of an epoch is left over", source=_loop("", _MICRO)),
        Example(
            title="divided, but stepped in every micro-batch",
            source=_loop("optimizer.zero_grad()\n", "if True:\n", after=""),
        ),
    ),
    good=(
        Example(source=_loop("", _LAST)),
        Example(
            title="zeroed where a window begins",
            source=_loop("if i % accum_steps == 0:\n    optimizer.zero_grad()\n", _LAST, after=""),
        ),
        Example(
            title="a loop over the micro-batches within each iteration",
            source=iteration("""
optimizer.zero_grad()
for part in range(accum_steps):
    with autocast("cuda"):
        loss = criterion(model(x[part]), y[part]) / accum_steps
    scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="skipped by continue",
            source=_loop("", "if (i + 1) % accum_steps != 0:\n    continue\nif True:\n"),
        ),
        Example(
            title="a step that is rare for another reason",
            source=_loop("optimizer.zero_grad()\n", "if i % 2 == 0:\n", after="").replace(" / accum_steps", ""),
        ),
        Example(
            title="batches that fill no window are left out",
            source=_loop("if i >= num_windows * accum_steps:\n    continue\n", _MICRO),
        ),
        Example(
            title="another optimizer's gradients",
            source=_loop("critic_optimizer.zero_grad()\n", _LAST),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Loops over micro-batches whose zero_grad or step is not where it must be."""
    for loop in file.loops.training:
        number = _number(file, loop)
        if number is None:
            continue
        events = file.flow.events_in(loop)
        steps = [event for event in events if event.act is Act.STEP]
        if any(event.callee is not None for event in events) or len(steps) == 0:
            continue
        if all(_is_under(file, event, loop, number) for event in steps):
            zeroed = list(_zeroed(file, loop, number, events, {event.optimizer for event in steps}))
            yield from zeroed or _tail(file, loop, number, steps)
        elif _is_divided(file, loop, number) and not _mentions(file, loop, number):
            message = f"the loss is divided by {number}, but the optimizer steps in every iteration"
            yield file.finding(INFO, steps[0].node, message)


def _number(file: SourceFile, loop: Loop) -> str | None:
    """The number of micro-batches: a name that says so, used with ``%`` or ``/`` in the loop."""
    for node in file.tree.inside(loop, ast.BinOp, ast.AugAssign):
        if isinstance(node.op, ast.Mod | ast.Div):
            right = node.right if isinstance(node, ast.BinOp) else node.value
            name = dotted(right)
            if name is not None and ACCUMULATE_WORD.fullmatch(name.rpartition(".")[2]):
                return name
    return None


def _is_under(file: SourceFile, event: Event, loop: Loop, number: str) -> bool:
    """Whether an `if` with the number decides over the event."""
    for outer in file.tree.ancestors(event.node):
        if outer is loop:
            return False
        if isinstance(outer, ast.If) and f"% {number}" in ast.unparse(outer.test):
            return True
    return False


def _zeroed(
    file: SourceFile, loop: Loop, number: str, events: list[Event], optimizers: set[str | None]
) -> Iterator[Finding]:
    """What zeroes the gradients of a stepped optimizer in every micro-batch."""
    backwards = [event for event in events if event.act is Act.BACKWARD]
    for event in events:
        is_same = event.act is Act.ZERO_GRAD and event.optimizer in optimizers
        if is_same and file.tree.block(file.tree.statement(at(event))) is loop.body and len(backwards) == 1:
            if file.tree.block(file.tree.statement(backwards[0].node)) is not loop.body:
                continue
            message = f"{event.optimizer}.zero_grad() in every batch throws away what {number} batches should add up"
            yield file.finding(INFO, event.node, message)


def _tail(file: SourceFile, loop: Loop, number: str, steps: list[Event]) -> Iterator[Finding]:
    """The last window of an epoch, where nothing steps it: the condition counts batches and forgets the last."""
    branch = file.loops.micro(loop)
    if branch is None or not isinstance(loop, ast.For) or not _counts_batches(loop, branch.test, number):
        return
    if any(file.tree.loops(jump)[:1] == [loop] for jump in file.tree.inside(loop, ast.Continue, ast.Break)):
        return  # it may leave the incomplete window out on purpose
    function = file.tree.function(loop)
    root = function if function is not None else file.tree.root
    later = [event for event in file.flow.events_in(root) if event.node.lineno > (loop.end_lineno or loop.lineno)]
    names = {event.optimizer for event in steps}
    if any(event.act in {Act.STEP, Act.CALL} and event.optimizer in {*names, None} for event in later):
        return
    message = f"the last batches of an epoch are not stepped where {number} does not divide their number"
    yield file.finding(INFO, branch.test, message, severity=Severity.INFO)


def _counts_batches(loop: ast.For, test: ast.expr, number: str) -> bool:
    """Whether a condition is ``(i + 1) % number == 0`` alone, with ``i`` counting the batches of this loop."""
    match loop.iter, loop.target, test:
        case (
            ast.Call(func=ast.Name(id="enumerate")),
            ast.Tuple(elts=[ast.Name(id=counter), *_]),
            ast.Compare(left=ast.BinOp(left=left, op=ast.Mod(), right=right), ops=[ast.Eq()]),
        ):
            names = {node.id for node in ast.walk(left) if isinstance(node, ast.Name)}
            return names == {counter} and dotted(right) == number
        case _:
            return False


def _is_divided(file: SourceFile, loop: Loop, number: str) -> bool:
    """Whether a loss is divided by the number, and both stand in the innermost loop."""
    for node in file.tree.inside(loop, ast.BinOp, ast.AugAssign):
        right = node.right if isinstance(node, ast.BinOp) else node.value
        if not isinstance(node.op, ast.Div) or dotted(right) != number or file.tree.loops(node)[:1] != [loop]:
            continue
        if "loss" in ast.unparse(file.tree.statement(node)).lower():
            return True
    return False


def _mentions(file: SourceFile, loop: Loop, number: str) -> bool:
    """Whether a condition, or the head of a loop, has to do with accumulation."""
    last = number.rpartition(".")[2]
    tests = [node.test for node in file.tree.inside(loop, ast.If, ast.IfExp, ast.While)]
    heads = [around.iter for around in (loop, *file.tree.loops(loop)) if isinstance(around, ast.For | ast.AsyncFor)]
    texts = [ast.unparse(node) for node in (*tests, *heads)]
    return any(last in text or "acc" in text or "sync" in text or "%" in text for text in texts)


RULE = Rule(info=INFO, check=check, words=("acc", "update_freq", "iter_size", "micro", "virtual", "batch_multiplier",
                                           "subdivision"), off_under=ALL_FRAMEWORKS)  # fmt: skip
