"""MP111: gradients of several micro-batches are added up, and the loss is not divided by their number."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import iteration
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import Loop, dotted
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

ACCUMULATE_WORD: Final = re.compile(
    r"(\w+_)?(accum\w*|acc|acc_(steps?|iters?|freq|num|grad)|iters?_to_acc\w*|update_freq|grad_acc\w*|virtual_batch\w*"
    r"|iter_size|micro_?batch(es)?|num_micro\w*|n_accum\w*|batch_multiplier|subdivisions?)",
    re.IGNORECASE,
)
"""How people call the number of micro-batches."""


def _accumulating(loss: str, head: str = "", before_step: str = "") -> str:
    return iteration(f"""
{head}with autocast("cuda"):
    loss = criterion(model(x), y){loss}
scaler.scale(loss).backward()
if (i + 1) % accum_steps == 0:
{before_step}    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""")


INFO = RuleInfo(
    id="MP111",
    name="accumulation-not-divided",
    severity=Severity.WARNING,
    why="The gradients of the micro-batches are added: without a division the step is as many times larger as there "
    "are micro-batches, and float16 gradients overflow sooner.",
    remedy="Divide the loss by the number of micro-batches before backward().",
    evidence="PyTorch's AMP examples, 'Gradient accumulation': loss = loss / iters_to_accumulate.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_accumulating(""),
            fixed=_accumulating("").replace("scaler.scale(loss)", "scaler.scale(loss / accum_steps)"),
        ),
    ),
    good=(
        Example(source=_accumulating(" / accum_steps")),
        Example(title="divided under another name", source=_accumulating(" / n")),
        Example(title="multiplied by the reciprocal", source=_accumulating(" * 0.25")),
        Example(
            title="divided in a sum",
            source=_accumulating("").replace("scaler.scale(loss)", "scaler.scale(loss.sum() / y.numel())"),
        ),
        Example(
            title="gradients divided before the step",
            source=_accumulating(
                "",
                before_step="    for p in model.parameters():\n        p.grad /= accum_steps\n",
            ),
        ),
        Example(
            title="a loss that sums over its tokens",
            source=_accumulating("").replace(
                "loss = criterion(model(x), y)", "loss = criterion(model(x), y, reduction='sum')"
            ),
        ),
        Example(
            title="the rate makes up for it",
            source=_accumulating("", head="optimizer.param_groups[0]['lr'] = 0.1 / accum_steps\n"),
        ),
        Example(
            title="two optimizers, one of which steps seldom",
            source=iteration("""
optimizer.zero_grad()
with autocast("cuda"):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
scaler.step(optimizer)
if i % accum_steps == 0:
    scaler.step(other_optimizer)
scaler.update()
"""),
        ),
        Example(
            title="zeroed in every micro-batch: nothing adds up",
            source=iteration("""
optimizer.zero_grad()
with autocast("cuda"):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
if i % log_every == 0:
    scaler.step(optimizer)
    scaler.update()
"""),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """The backward of every accumulating loop in which nothing is divided."""
    for loop in file.loops.training:
        branch = file.loops.micro(loop)
        events = file.flow.events_in(loop)
        backwards = [event for event in events if event.act is Act.BACKWARD]
        number = _number(branch.test) if branch is not None else None
        if branch is None or number is None or len(backwards) != 1:
            continue
        if not _accumulates(file, branch, events) or _is_divided(file, loop, backwards[0], number):
            continue
        text = ast.unparse(number)
        message = f"gradients of {text} batches are added up, and {backwards[0].loss or 'the loss'} is not divided"
        yield file.finding(INFO, backwards[0].node, message, fix=_fix(file, backwards[0], text))


def _number(test: ast.expr) -> ast.expr | None:
    """The number of micro-batches in ``(i + 1) % accum_steps == 0``, if it is called so."""
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            name = dotted(node.right)
            if name is not None and ACCUMULATE_WORD.fullmatch(name.rpartition(".")[2]):
                return node.right
    return None


def _accumulates(file: SourceFile, branch: ast.If, events: list[Event]) -> bool:
    """Whether all steps, and all zeroing of gradients, are under the condition, and the backward is not."""
    inside = {event.node for statement in branch.body for event in file.flow.events_in(statement)}
    rare = [event for event in events if event.act in {Act.STEP, Act.ZERO_GRAD}]
    return all(event.node in inside or branch in file.tree.ancestors(event.node) for event in rare) and not any(
        event.node in inside for event in events if event.act is Act.BACKWARD
    )


def _is_divided(file: SourceFile, loop: Loop, backward: Event, number: ast.expr) -> bool:
    """Whether anything that makes the loss, or anything with the number of micro-batches, is a quotient."""
    name = (dotted(number) or "").rpartition(".")[2]
    if re.search(r"reduction\s*=\s*['\"](sum|none)['\"]|\.sum\(", file.text.text) or backward.via is not None:
        return True
    if re.search(rf"[/*]=?\s*(float\()?[\w.]*\b{re.escape(name)}\b|\b{re.escape(name)}\s*[*/]", file.text.text):
        return True
    if backward.loss is None and not _plain(backward):
        return True
    return any(_divides(node) for node in file.tree.inside(loop, ast.Assign, ast.AugAssign, ast.Call))


def _plain(backward: Event) -> bool:
    match backward.node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute(attr="scale"), args=[ast.Name()]))):
            return True
        case _:
            return False


def _divides(node: ast.Assign | ast.AugAssign | ast.Call) -> bool:
    """Whether a loss or gradient is divided or multiplied here."""
    match node:
        case ast.AugAssign(op=ast.Div() | ast.Mult(), target=target):
            return _is_loss(target)
        case ast.Assign(targets=[target], value=value) if _is_loss(target):
            return any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div | ast.Mult) for one in ast.walk(value))
        case ast.Call(func=ast.Attribute(attr="div" | "div_" | "mul_" | "mul")):
            return True
        case _:
            return False


def _is_loss(target: ast.expr) -> bool:
    text = ast.unparse(target).lower()
    return "loss" in text or "grad" in text


def _fix(file: SourceFile, backward: Event, number: str) -> Fix | None:
    match backward.node:
        case (
            ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute(attr="scale"), args=[loss])))
            | ast.Call(func=ast.Attribute(value=ast.Name() as loss))
        ):
            text = f"{file.text.segment(loss)} / {number}"
            owner = backward.node.func.value if isinstance(backward.node.func, ast.Attribute) else None
            return fix(file.edit.replace(loss, f"({text})" if loss is owner else text), safe=False)
        case _:
            return None


RULE = Rule(info=INFO, check=check, words=("%",), off_under=ALL_FRAMEWORKS)
