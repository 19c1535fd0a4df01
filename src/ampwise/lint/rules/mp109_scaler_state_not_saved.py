"""MP109: a checkpoint holds the optimizer's state but not the scaler's."""

import ast
import re
from collections.abc import Iterator
from typing import Final, TypeAlias

from ampwise.lint.events import Act
from ampwise.lint.guards import TRAINERS
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.names import Bound
from ampwise.lint.protocol import constructions
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.torch_names import SCALERS
from ampwise.lint.tree import dotted
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_SCALER_KEY: Final = re.compile(r"scaler|\bamp\b|amp_state|loss_scale|grad_scale", re.IGNORECASE)
_SAVES: Final = re.compile(r"(\w+_)?save(_?\w+)?|dump|\w*(checkpoint|ck?pt|ckpoint|snapshot)\w*", re.IGNORECASE)
_LOADS: Final = re.compile(r"load|resume|restore|init|from|find|get|read|remove|clean", re.IGNORECASE)
_Literal: TypeAlias = ast.Dict | ast.Call

_STEP: Final = """
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""


def _saving(entry: str) -> str:
    return after_loss(
        _STEP
        + 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()'
        + entry
        + '}, "last.pt")\n'
    )


INFO = RuleInfo(
    id="MP109",
    name="scaler-state-not-saved",
    severity=Severity.WARNING,
    why="Resuming from this checkpoint starts the loss scale at 65536 again: the first steps overflow and are "
    "skipped, and the resumed training differs from one that was never interrupted.",
    remedy="Save scaler.state_dict() beside the optimizer's, and load it with scaler.load_state_dict().",
    evidence="PyTorch's AMP recipe, 'Saving/Resuming'. Seen in 14 of 48 public training scripts drawn at random.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(source=_saving(""), fixed=_saving(', "scaler": scaler.state_dict()')),
        Example(
            title="a dict on several lines",
            source=after_loss(
                _STEP
                + """
checkpoint = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
}
torch.save(checkpoint, "last.pt")
"""
            ),
            fixed=after_loss(
                _STEP
                + """
checkpoint = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "scaler": scaler.state_dict(),
}
torch.save(checkpoint, "last.pt")
"""
            ),
        ),
        Example(
            title="whatever a setting called amp says",
            source=after_loss(
                """
if config["amp"]:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
else:
    loss.backward()
    optimizer.step()
torch.save({"optimizer": None if i else optimizer.state_dict()}, "last.pt")
"""
            ),
            fixed=after_loss(
                """
if config["amp"]:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
else:
    loss.backward()
    optimizer.step()
torch.save({"optimizer": None if i else optimizer.state_dict(), "scaler": scaler.state_dict()}, "last.pt")
"""
            ),
        ),
        Example(
            title="by a helper from elsewhere",
            source=after_loss(
                _STEP
                + """
if i % 1000 == 0:
    save_ckpoints(model.state_dict(), i, optimizer.state_dict(), "last.pt")
    make_log_ckpt(net=model, optim=optimizer, number=i)
"""
            ),
            num_findings=2,
        ),
        Example(
            title="put into the checkpoint entry by entry",
            source=after_loss(
                _STEP
                + """
state = {"model": model.state_dict()}
state["optimizer"] = optimizer.state_dict()
torch.save(state, "last.pt")
"""
            ),
        ),
        Example(
            title="a scaler that may not be there: no fix is offered",
            source=_saving("").replace('GradScaler("cuda")', 'GradScaler("cuda") if use_amp else None'),
        ),
        Example(
            title="saved, but never loaded",
            source="""
import torch
scaler = torch.amp.GradScaler("cuda")
checkpoint = torch.load("last.pt")
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
train(model, optimizer, scaler)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, "last.pt")
""",
            fixed="""
import torch
scaler = torch.amp.GradScaler("cuda")
checkpoint = torch.load("last.pt")
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scaler.load_state_dict(checkpoint["scaler"])
train(model, optimizer, scaler)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, "last.pt")
""",
        ),
        Example(
            title="handed to a helper from elsewhere, in a file that itself saves nothing",
            source="""
from torch.amp import GradScaler, autocast
from helpers import Saver

def fit(model, loader, optimizer, scheduler):
    scaler = GradScaler("cuda")
    saver = Saver("runs")
    for batch in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    saver.saveModel(1, model, optimizer, scheduler)
""",
        ),
    ),
    good=(
        Example(source=_saving(', "scaler": scaler.state_dict()')),
        Example(
            title="added later, under a condition",
            source=after_loss(
                _STEP
                + """
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
if use_amp:
    state["scaler"] = scaler.state_dict()
torch.save(state, "last.pt")
"""
            ),
        ),
        Example(
            title="weights alone, for inference",
            source=after_loss(_STEP + 'torch.save({"model": model.state_dict()}, "best.pt")\n'),
        ),
        Example(
            title="no scaler in the file",
            source="""
import torch
def save(model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
""",
        ),
        Example(
            title="a scaler switched off for good",
            source=after_loss(
                _STEP + 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")\n'
            ).replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)'),
        ),
        Example(
            title="a file of its own",
            source=after_loss(
                _STEP
                + """
torch.save(optimizer.state_dict(), "optimizer.pt")
torch.save(scaler.state_dict(), "scaler.pt")
"""
            ),
        ),
        Example(
            title="helpers that are handed the scaler, or load, or save the weights alone",
            source=after_loss(
                _STEP
                + """
utils.save_model(args, i, model, optimizer, loss_scaler=scaler)
start = load_checkpoint(model, optimizer)
save_weights(model, "best.pt")
"""
            ),
        ),
        Example(
            title="a helper that is handed the object that has the scaler",
            source="""
import torch
class Trainer:
    def __init__(self, model):
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(model.parameters())
    def save(self, folder):
        save_optimizer(self, self.optimizer, folder)
""",
        ),
        Example(
            title="an optimizer that no scaler steps",
            source=after_loss(_STEP)
            + """
def pretrain(model, loader):
    sgd = torch.optim.SGD(model.parameters())
    torch.save({"model": model.state_dict(), "optimizer": sgd.state_dict()}, "first.pt")
""",
        ),
        Example(
            title="a scaler that is no GradScaler",
            source="""
import torch
from sklearn.preprocessing import StandardScaler
scaler = StandardScaler()
scaler.fit(x)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Checkpoints without the scaler; where it is saved, optimizers that are resumed without it."""
    scalers = _scalers(file)
    if not scalers or (_is_off(file) and not list(constructions(file))):
        return
    states = [call for call in _methods(file, "state_dict") if file.kinds.is_a(_owner(call), Kind.SCALER)]
    if not states:
        yield from _not_saved(file, scalers)
    elif not any(file.kinds.is_a(_owner(call), Kind.SCALER) for call in _methods(file, "load_state_dict")):
        yield from _not_loaded(file, scalers)


def _scalers(file: SourceFile) -> list[str]:
    """The places of the file's gradient scalers, known from more than a name."""
    found: dict[str, None] = {}
    for event in file.flow.events:
        if event.scaler is not None and isinstance(event.node, ast.Call):
            found[event.scaler] = None
    for call in constructions(file):
        statement = file.tree.statement(call)
        if isinstance(statement, ast.Assign) and (name := dotted(statement.targets[0])) is not None:
            found[name] = None
    return list(found)


def _is_off(file: SourceFile) -> bool:
    return "GradScaler" in file.text.text and "enabled=False" in file.text.text.replace(" ", "")


def _methods(file: SourceFile, name: str) -> list[ast.Call]:
    return [
        call for call in file.tree.nodes(ast.Call) if isinstance(call.func, ast.Attribute) and call.func.attr == name
    ]


def _owner(call: ast.Call) -> ast.expr:
    return call.func.value if isinstance(call.func, ast.Attribute) else call.func


def _is_optimizer_state(file: SourceFile, value: ast.expr | None) -> bool:
    match value:
        case ast.Call(func=ast.Attribute(attr="state_dict", value=owner)):
            place = (dotted(owner) or "").lower()
            return file.kinds.is_a(owner, Kind.OPTIMIZER) and "sched" not in place and _is_stepped(file, place)
        case ast.IfExp(body=body, orelse=other):
            return _is_optimizer_state(file, body) or _is_optimizer_state(file, other)
        case _:
            return False


def _is_stepped(file: SourceFile, optimizer: str) -> bool:
    """Whether a scaler steps an optimizer of this name; True where no step through a scaler is seen."""
    stepped = {
        (event.optimizer or "").lower().rpartition(".")[2]
        for event in file.flow.events
        if event.act is Act.STEP and event.scaler is not None
    }
    return not stepped or optimizer.rpartition(".")[2] in stepped


def _not_saved(file: SourceFile, scalers: list[str]) -> Iterator[Finding]:
    if _has_scaler_key(file):
        return
    for literal in (*file.tree.nodes(ast.Dict), *file.tree.nodes(ast.Call)):
        if _holds_optimizer(file, scalers, literal) and _is_saved(file, literal):
            name = _visible(file, scalers, literal)
            yield file.finding(INFO, literal, _message(name or scalers[0]), fix=_entry(file, literal, name))
    for entry in _entries(file):
        yield file.finding(INFO, entry, _message(_visible(file, scalers, entry) or scalers[0]))


def _message(scaler: str) -> str:
    return f"the checkpoint holds the optimizer's state but not {scaler}.state_dict()"


def _entries(file: SourceFile) -> Iterator[ast.Subscript]:
    """The ``state["optimizer"] = optimizer.state_dict()`` of checkpoints."""
    for statement in file.tree.nodes(ast.Assign):
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and _is_optimizer_state(file, statement.value):
            names = {dotted(target.value)} - {None}
            if names and _is_saved_under(file, names, statement):
                yield target


def _has_scaler_key(file: SourceFile) -> bool:
    """Whether any checkpoint of the file is given or asked for something called after the scaler."""
    keys: list[ast.expr | None] = [
        subscript.slice
        for subscript in file.tree.nodes(ast.Subscript)
        if isinstance(subscript.ctx, ast.Store) or "scaler" in ast.unparse(subscript.slice)
    ]
    for literal in file.tree.nodes(ast.Dict):
        keys.extend(literal.keys)
    texts = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    words = [keyword.arg for call in file.tree.nodes(ast.Call) if _is_dict(call) for keyword in call.keywords]
    return any(_SCALER_KEY.search(text) for text in (*texts, *filter(None, words)))


def _is_dict(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "dict"


def _holds_optimizer(file: SourceFile, scalers: list[str], literal: _Literal) -> bool:
    if isinstance(literal, ast.Dict):
        return any(_is_optimizer_state(file, value) for value in literal.values)
    if _is_dict(literal):
        return any(_is_optimizer_state(file, keyword.value) for keyword in literal.keywords)
    if file.names.resolve(literal.func) == "torch.save":
        return bool(literal.args) and _is_optimizer_state(file, literal.args[0])
    return _is_handed_to_helper(file, scalers, literal)


def _is_handed_to_helper(file: SourceFile, scalers: list[str], call: ast.Call) -> bool:
    """Whether a function that is not in this file is to save an optimizer, and is handed no scaler nor who has it."""
    if not _saves(call) or _LOADS.search(_name(call)) or file.names.function(call) is not None:
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if any(_SCALER_KEY.search(ast.unparse(one)) for one in (*given, *call.keywords)):
        return False
    if {scaler.rpartition(".")[0] for scaler in scalers} & {dotted(one) for one in given}:
        return False
    if any(isinstance(one, ast.Starred) for one in call.args) or any(keyword.arg is None for keyword in call.keywords):
        return False
    return len(given) > 1 and any(_is_optimizer_state(file, one) or _is_optimizer(file, one) for one in given)


def _is_optimizer(file: SourceFile, value: ast.expr) -> bool:
    place = (dotted(value) or "").lower()
    return file.kinds.is_a(value, Kind.OPTIMIZER) and "sched" not in place and _is_stepped(file, place)


def _is_saved(file: SourceFile, literal: _Literal) -> bool:
    """Whether the dict goes to ``torch.save`` or a function that is called after saving, by itself or by name."""
    if isinstance(literal, ast.Call) and not _is_dict(literal):
        return True
    for outer in file.tree.ancestors(literal):
        if isinstance(outer, ast.Call) and _saves(outer):
            return True
        if isinstance(outer, ast.Return):
            function = file.tree.function(literal)
            return function is not None and _SAVES.fullmatch(function.name) is not None
        if isinstance(outer, ast.Assign):
            return _is_saved_by_name(file, outer)
        if isinstance(outer, ast.stmt):
            return False
    return False


def _is_saved_by_name(file: SourceFile, statement: ast.Assign) -> bool:
    return _is_saved_under(file, {dotted(target) for target in statement.targets}, statement)


def _is_saved_under(file: SourceFile, names: set[str | None], statement: ast.Assign) -> bool:
    for call in file.tree.nodes(ast.Call):
        if _saves(call) and file.tree.function(call) is file.tree.function(statement):
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(dotted(argument) in names for argument in arguments):
                return True
    return False


def _saves(call: ast.Call) -> bool:
    return bool(_SAVES.fullmatch(_name(call)))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _visible(file: SourceFile, scalers: list[str], node: ast.expr) -> str | None:
    """The scaler that has a value at ``node``."""
    return next((name for name in scalers if file.names.visible(name, node)), None)


def _is_always_made(file: SourceFile, scaler: str, node: ast.expr) -> bool:
    """Whether the scaler certainly is one at ``node``, and not None or unbound under some condition."""
    around = set(file.tree.ancestors(node))
    for bound in file.names.visible(scaler, node):
        match bound.value:
            case ast.Call(func=function) if file.names.resolve(function) in SCALERS:
                outer = file.tree.ancestors(bound.node)
                if any(isinstance(one, ast.If | ast.Try) and one not in around for one in outer):
                    return False
            case None if bound.how is Bound.PARAMETER:
                continue
            case _:
                return False
    return True


def _entry(file: SourceFile, literal: _Literal, scaler: str | None) -> Fix | None:
    """Add the scaler's state as the dict's last entry."""
    if not isinstance(literal, ast.Dict) or not literal.keys or None in literal.keys:
        return None
    if scaler is None or not _is_always_made(file, scaler, literal):
        return None
    key, value = literal.keys[-1], literal.values[-1]
    own_line = key is not None and key.lineno != literal.lineno
    between = f",{file.text.newline}{' ' * key.col_offset}" if own_line and key is not None else ", "
    return fix(file.edit.insert(file.text.end(value), f'{between}"scaler": {scaler}.state_dict()'), safe=False)


def _not_loaded(file: SourceFile, scalers: list[str]) -> Iterator[Finding]:
    for call in _methods(file, "load_state_dict"):
        owner = _owner(call)
        if not file.kinds.is_a(owner, Kind.OPTIMIZER, at_least=Confidence.NAME) or not call.args:
            continue
        name = _visible(file, scalers, call)
        if name is not None:
            message = f"{dotted(owner)} is resumed without {name}, whose state the checkpoint holds"
            yield file.finding(INFO, call, message, fix=_load(file, call, name))
            return


def _load(file: SourceFile, call: ast.Call, scaler: str) -> Fix | None:
    statement = file.tree.statement(call)
    bound = file.names.visible(scaler, call)
    is_before = bool(bound) and bound[0].position < (call.lineno, 0) and _is_always_made(file, scaler, call)
    match call.args[0]:
        case ast.Subscript(value=checkpoint, slice=ast.Constant(value=str())) if is_before:
            key = _saved_key(file)
            if key is None or not isinstance(statement, ast.Expr):
                return None
            line = f"{scaler}.load_state_dict({file.text.segment(checkpoint)}[{key}])"
            return fix(file.edit.insert_after(statement, line), safe=False)
        case _:
            return None


def _saved_key(file: SourceFile) -> str | None:
    """The key under which the scaler's state is saved, as it is written."""
    for literal in file.tree.nodes(ast.Dict):
        for key, value in zip(literal.keys, literal.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and "scaler" in ast.unparse(value.func):
                return file.text.segment(key)
    return None


RULE = Rule(info=INFO, check=check, words=("state_dict", "save", "checkpoint", "ckpt"), off_under=TRAINERS)
