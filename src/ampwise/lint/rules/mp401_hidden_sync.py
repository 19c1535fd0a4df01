"""MP401: a training loop that waits for the device in every iteration."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.loops import Hot
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

_STEP: Final = """
import torch

def train(model, optimizer, loader, criterion, device, log_every):
    total = 0.0
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

INFO = RuleInfo(
    id="MP401",
    name="hidden-sync",
    severity=Severity.INFO,
    why="The CPU runs ahead of the device and keeps it busy. Reading a tensor's value (.item(), .cpu(), float(), "
    "print(), an if on it) waits until the device has caught up; in every iteration the device then idles while "
    "Python prepares the next one.",
    remedy="Keep the value on the device (total += loss.detach()) and read it every N iterations or once per epoch.",
    evidence="Seen 76 times in 38 of 48 public training scripts. scaler.step() of an optimizer that is not fused "
    "waits once per step itself, so after it one more wait costs little.",
    bad=(
        Example(
            source=_STEP
            + """
        total += loss.item()
""",
        ),
        Example(
            title="by conversion, by a condition and in a message",
            source=_STEP
            + """
        if torch.isnan(loss):
            break
        history = float(loss)
        print(f"{i}: {loss}")
""",
            num_findings=3,
        ),
        Example(
            title="metrics, a dictionary of losses, a formatted message",
            source=_STEP
            + """
        correct = (model(x).argmax(1) == y).sum().item()
        losses = model(x, y)
        shown = {k: v.item() for k, v in losses.items()}
        print(("%d: " + "%.3f" * 2) % (i, *loss))
        scores = loss.detach().to("cpu")
""",
            num_findings=4,
        ),
        Example(
            title="in a function that the loop calls",
            source=_STEP
            + """
        track(loss, y)

def track(loss, y):
    return loss.cpu().numpy()
""",
        ),
    ),
    good=(
        Example(
            title="now and then",
            source=_STEP
            + """
        if i % log_every == 0:
            print(loss.item())
        total += loss.detach()
    return total.item()
""",
        ),
        Example(
            title="a batch that is still on the CPU, and plain numbers",
            source="""
def train(model, optimizer, loader, criterion):
    seen = 0
    for x, y in loader:
        seen += float(y.size(0)) + int(y.sum()) + int(x.shape[0])
        loss = criterion(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss is None:
            break
""",
        ),
        Example(
            title="evaluation",
            source=_STEP
            + """

def evaluate(model, loader, criterion):
    total = 0
    for x, y in loader:
        total += criterion(model(x.cuda()), y.cuda()).item()
    return total
""",
        ),
        Example(
            title="names that only sound like tensors",
            source=_STEP
            + """
        losses = []
        loss_meter = AverageMeter()
        if losses and args.loss_scale:
            print(f"{losses} {loss_meter} {args.loss_type}")
        if loss_scale_mode:
            continue
""",
        ),
        Example(
            title="rebound to a number",
            source=_STEP
            + """
        if i % log_every == 0:
            loss = loss.item()
            print(f"{loss:.3f}", float(loss))
""",
        ),
    ),
)

_METHODS: Final = frozenset({"item", "tolist", "cpu", "numpy"})
_CONVERSIONS: Final = frozenset("float int bool print str format round math.isnan math.isfinite".split())
_WRITERS: Final = frozenset({"add_scalar", "add_scalars", "log_scalar"})
_DEVICE_WORDS: Final = ("cuda", "device", "accelerator", "gpu", "to(")


def check(file: SourceFile) -> Iterator[Finding]:
    """Every read of a device tensor's value that runs in each iteration of a training loop."""
    if not any(word in file.text.text for word in _DEVICE_WORDS):
        return
    for node, read in _reads(file):
        hot = file.loops.hot(node)
        if hot is None or (file.kinds.is_under_no_grad(node) and _is_evaluation(file, node)):
            continue
        yield file.finding(INFO, node, _message(file, node, read, hot), group=hot.label)


def _reads(file: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each place that waits, with the tensor it reads."""
    for call in file.tree.nodes(ast.Call):
        tensor = _read_by_call(file, call)
        if tensor is not None:
            yield call, tensor
    for node in file.tree.nodes(ast.If, ast.While, ast.Assert, ast.IfExp):
        for test in _conditions(node.test):
            if _read_by_call(file, test) is None and _is_on_device(file, test, at_least=Confidence.USE):
                yield test, test
    for filled in file.tree.nodes(ast.BinOp):
        if isinstance(filled.op, ast.Mod) and _is_text(filled.left):
            tensor = next((one for one in _elements(filled.right) if _is_on_device(file, one)), None)
            if tensor is not None:
                yield tensor, tensor
    for value in file.tree.nodes(ast.FormattedValue):
        if _is_on_device(file, value.value):
            yield value.value, value.value


def _read_by_call(file: SourceFile, call: ast.expr) -> ast.expr | None:
    match call:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in _METHODS:
            return owner if _is_on_device(file, owner) else None
        case ast.Call(func=ast.Attribute(value=owner, attr="to")) if _is_on_device(file, owner):
            return owner if file.kinds.of(call).on_device is False else None
        case ast.Call(func=ast.Attribute(attr="get_scale", value=owner)):
            return owner if file.kinds.is_a(owner, Kind.SCALER) else None
        case ast.Call(func=ast.Attribute(attr=attr), args=arguments) if attr in _WRITERS:
            return next((one for one in arguments if _is_on_device(file, one)), None)
        case ast.Call(func=function, args=arguments) if file.names.resolve(function) in _CONVERSIONS:
            return next((one for one in arguments if _is_on_device(file, one)), None)
        case _:
            return None


def _is_text(expression: ast.expr) -> bool:
    match expression:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left=left):
            return _is_text(left)
        case _:
            return False


def _elements(filling: ast.expr) -> Iterator[ast.expr]:
    """What is put into ``"%s %s" % (a, *b)``."""
    for element in filling.elts if isinstance(filling, ast.Tuple) else [filling]:
        yield element.value if isinstance(element, ast.Starred) else element


def _conditions(test: ast.expr) -> Iterator[ast.expr]:
    match test:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _conditions(value)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _conditions(inner)
        case _:
            yield test


def _is_on_device(file: SourceFile, expression: ast.expr, *, at_least: Confidence = Confidence.NAME) -> bool:
    value = file.kinds.of(expression)
    return value.kind is Kind.TENSOR and value.on_device is True and value.confidence >= at_least


def _is_evaluation(file: SourceFile, node: ast.expr) -> bool:
    """Whether the code around runs a loop of its own without training in it."""
    loops = file.tree.loops(node)
    return bool(loops) and loops[0] not in file.loops.training


def _message(file: SourceFile, node: ast.expr, read: ast.expr, hot: Hot) -> str:
    what = file.text.segment(node) if node is not read else file.text.segment(read)
    shown = " ".join(what.split())
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{shown} waits for the device in every iteration of {hot.label}{_cheap(file, node, hot)}"


def _cheap(file: SourceFile, node: ast.expr, hot: Hot) -> str:
    """What lowers the price: a scaler's step that has waited already."""
    body = hot.loop or hot.function
    steps = [e for e in file.flow.events_in(body) if e.act is Act.STEP and e.scaler] if body is not None else []
    if not any((step.node.lineno, step.node.col_offset) < (node.lineno, node.col_offset) for step in steps):
        return ""
    return "; scaler.step() has just waited too unless the optimizer is fused"


RULE = Rule(info=INFO, check=check, words=("backward",))
