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
            title="a message filled by format, a bar, a log",
            source=_STEP
            + """
        bar.set_postfix({"loss": loss})
        logger.info("step {}: {:.4f}".format(i, loss))
        logger.info("loss %.4f", loss)
""",
            num_findings=3,
        ),
        Example(
            title="what helpers of the script return, gradients, a sum over processes",
            source=_STEP
            + """
        top1, top5 = topk(model(x), y)
        history.append(top1.item())
        seen.append({k: v.item() for k, v in parts.items()})
        for p in model.parameters():
            if torch.isnan(p.grad).any():
                optimizer.zero_grad()
        share = imported_loss(x, y)
        share /= WORLD
        share.backward()
        print("%.4f" % share)

WORLD = int(arguments.world)

def topk(output, target):
    hits = output.topk(5, 1)[1].eq(target[:, None]).float()
    return hits[:, :1].sum(), hits.sum()
""",
            num_findings=4,
        ),
        Example(
            title="a wrapper that scales, clips and steps at once",
            source="""
def train_one_epoch(model, optimizer, loader, criterion, loss_scaler, device):
    for x, y in loader:
        loss = criterion(model(x.to(device)), y.to(device))
        loss_scaler(loss, optimizer, parameters=model.parameters())
        optimizer.zero_grad()
        print(loss.item())
""",
        ),
        Example(
            title="torch imported late",
            source="""
def train(model, optimizer, loader, device):
    torch, functional = load_torch()
    for x, y in loader:
        weights = torch.ones(x.shape[0], device=device)
        loss = (functional.cross_entropy(model(x.to(device)), y.to(device), reduction="none") * weights).mean()
        if not bool(torch.isfinite(loss).item()):
            raise ValueError("the loss is no number")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
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
            title="in arms that end the loop or the process, for a loss that is no number, at the first step",
            source=_STEP
            + """
        if stop_file.exists():
            print(loss)
            sys.exit(1)
        if stop_file.exists():
            print(f"stopped at {loss}")
            break
        if not math.isfinite(total):
            print(loss)
            continue
        if self._step == 0:
            print(loss)
""",
        ),
        Example(
            title="a number that a method of the script returns",
            source="""
class Trainer:
    def micro_step(self, batch):
        loss = self.model(batch.to(self.device))
        loss.backward()
        return loss.detach()

    def shown(self, batch):
        return len(batch) / 2

    def fit(self, writer, accumulation_steps):
        for batch in self.loader:
            self.micro_step(batch)
            self.optimizer.step()
            mean_loss = 0.0
            mean_loss += self.shown(batch)
            mean_loss = mean_loss / accumulation_steps
            writer.add_scalar("loss", mean_loss)
            print(f"{mean_loss:.3f}")
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
_ITSELF: Final = frozenset({"item", "cpu"})
"""Methods that only tensors have, or numbers of numpy, which are known as such."""
_CONVERSIONS: Final = frozenset("float int bool print str format round math.isnan math.isfinite math.isinf".split())
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
            return owner if _is_on_device(file, owner) or (attr in _ITSELF and _may_be(file, owner)) else None
        case ast.Call(func=ast.Attribute(value=owner, attr="format")) if _is_text(owner):
            return _first_on_device(file, call)
        case ast.Call(func=ast.Attribute(attr="set_postfix")):
            return _first_on_device(file, call)
        case ast.Call(func=ast.Attribute(value=owner, attr="info" | "warning")) if "log" in ast.unparse(owner).lower():
            return _first_on_device(file, call)
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


def _may_be(file: SourceFile, owner: ast.expr) -> bool:
    """Whether what nothing is known of may be on the device: on a GPU's machine most tensors in a step are."""
    value = file.kinds.of(owner)
    return value.kind is Kind.UNKNOWN or (value.kind is Kind.TENSOR and value.on_device is None)


def _first_on_device(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """The first tensor that is handed over to be shown, in a dictionary too."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    values = [one for argument in given for one in (argument.values if isinstance(argument, ast.Dict) else [argument])]
    return next((one for one in values if _is_on_device(file, one)), None)


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


RULE = Rule(info=INFO, check=check, words=("backward", "scaler("))
