"""MP115: a training runs under autocast to float16, and its loss is not scaled."""

import ast
import re
from collections.abc import Iterator

from ampwise.lint.events import Act, Event
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.regions import Region
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity


def _training(autocast: str, backward: str = "loss.backward()") -> str:
    return f"""
import torch
def train(model, optimizer, loader, criterion, dtype):
    for x, y in loader:
        optimizer.zero_grad()
        with {autocast}:
            loss = criterion(model(x), y)
        {backward}
        optimizer.step()
"""


INFO = RuleInfo(
    id="MP115",
    name="fp16-autocast-without-scaler",
    severity=Severity.ERROR,
    why="float16 holds nothing below 6e-8: without a loss scale small gradients become zero, and the training gets "
    "stuck or ends worse than in fp32, without any message.",
    remedy="Scale the loss with torch.amp.GradScaler, or compute in bfloat16, which needs no scaling.",
    evidence="torch.amp's documentation, 'Gradient Scaling': float16 gradients 'flush to zero (underflow)'. "
    "Autocast's default on cuda is float16.",
    bad=(
        Example(title="cuda's default is float16", source=_training('torch.autocast("cuda")')),
        Example(source=_training('torch.autocast(device_type="cuda", dtype=torch.float16)')),
    ),
    good=(
        Example(title="bfloat16", source=_training('torch.autocast("cuda", dtype=torch.bfloat16)')),
        Example(title="the CPU's default is bfloat16", source=_training('torch.autocast("cpu")')),
        Example(title="a dtype from elsewhere", source=_training('torch.autocast("cuda", dtype=dtype)')),
        Example(title="switched off", source=_training('torch.autocast("cuda", enabled=False)')),
        Example(title="scaled", source=_training('torch.autocast("cuda")', "scaler.scale(loss).backward()")),
        Example(title="scaled by a constant", source=_training('torch.autocast("cuda")', "(loss * 1024).backward()")),
        Example(
            title="scaled by a wrapper", source=_training('torch.autocast("cuda")', "loss_scaler(loss, optimizer)")
        ),
        Example(
            title="evaluation beside a training in fp32",
            source=_training('torch.autocast("cuda", enabled=False)')
            + """
def evaluate(model, loader):
    with torch.no_grad(), torch.autocast("cuda"):
        return [model(x) for x in loader]
""",
        ),
        Example(
            title="gradients of an input: nothing is trained",
            source="""
import torch
def saliency(model, x):
    with torch.autocast("cuda"):
        score = model(x).max()
    score.backward()
    return x.grad
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every backward of a loss that was made under autocast to float16, in a file without a scaler."""
    if re.search(r"scaler|loss_?scal|scale_loss|accelerator|fabric|deepspeed", file.text.text, re.IGNORECASE):
        return
    for event in file.flow.events:
        if event.act is not Act.BACKWARD or event.loss is None or not _is_trained(file, event):
            continue
        region = _region(file, event)
        if region is not None and region.dtype == "torch.float16" and not _is_scaled_by_hand(file, event):
            message = f"{event.loss} is computed under autocast to float16, and nothing scales it"
            yield file.finding(INFO, event.node, message)


def _is_trained(file: SourceFile, event: Event) -> bool:
    """Whether an optimizer steps in the same function, or in a loop that calls it."""
    root = file.tree.function(event.node) or file.tree.root
    return Act.STEP in file.flow.acts_in(root)


def _region(file: SourceFile, event: Event) -> Region | None:
    """The region in which the loss was made."""
    node = event.node
    owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node
    bound = file.names.latest(owner)
    if bound is None or file.tree.function(bound.node) is not file.tree.function(node):
        return None
    return file.regions.autocast(bound.node)


def _is_scaled_by_hand(file: SourceFile, event: Event) -> bool:
    """Whether the loss is multiplied by a number of its own, or gradients are divided."""
    root = file.tree.function(event.node) or file.tree.root
    name = event.loss or ""
    for node in file.tree.inside(root, ast.BinOp, ast.AugAssign):
        target = node.left if isinstance(node, ast.BinOp) else node.target
        if isinstance(node.op, ast.Mult) and ast.unparse(target) == name:
            return True
    return False


RULE = Rule(info=INFO, check=check, words=("autocast",), off_under=ALL_FRAMEWORKS)
