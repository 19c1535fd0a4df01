"""MP404: a model is evaluated while autograd records every batch."""

import ast
import re
from collections.abc import Iterator
from typing import Final, TypeAlias

from ampwise.lint.events import Act
from ampwise.lint.guards import TRAINERS, is_unit_test
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import Function, Loop, dotted
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_EVALUATE: Final = """
import torch

def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        out = model(x)
        print((out.argmax(-1) == y).sum())
"""

INFO = RuleInfo(
    id="MP404",
    name="eval-without-no_grad",
    severity=Severity.WARNING,
    why="model.eval() changes dropout and batch norm, not autograd: every forward still records its graph and keeps "
    "its activations, often in memory that training needs.",
    remedy="Run the evaluation under torch.no_grad() or torch.inference_mode().",
    evidence="PyTorch's autograd notes, 'Locally disabling gradient computation': eval mode has no say in grad mode.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_EVALUATE,
            fixed=_EVALUATE.replace("def evaluate", "@torch.no_grad()\ndef evaluate"),
        ),
        Example(
            title="over the test set, in whatever mode",
            source="""
import torch

def accuracy(model, test_loader):
    return sum((model(x).argmax(-1) == y).sum() for x, y in test_loader)

def score(model, test_loader):
    for x, y in test_loader:
        print(model(x))
""",
            fixed="""
import torch

def accuracy(model, test_loader):
    return sum((model(x).argmax(-1) == y).sum() for x, y in test_loader)

@torch.no_grad()
def score(model, test_loader):
    for x, y in test_loader:
        print(model(x))
""",
        ),
        Example(
            title="in one arm of two",
            source="""
import torch

def evaluate(model, loader, amp):
    model.eval()
    for x in loader:
        x = torch.autograd.Variable(x)
        if amp:
            with torch.autocast("cuda"):
                out = model(x)
        else:
            with torch.no_grad():
                out = model(x)
        print(out.argmax(-1))
""",
            fixed="""
import torch

@torch.no_grad()
def evaluate(model, loader, amp):
    model.eval()
    for x in loader:
        x = torch.autograd.Variable(x)
        if amp:
            with torch.autocast("cuda"):
                out = model(x)
        else:
            with torch.no_grad():
                out = model(x)
        print(out.argmax(-1))
""",
        ),
        Example(
            title="at module level",
            source="""
from torch import nn

model = nn.Linear(8, 8)
model.eval()
for x in test_loader:
    print(model(x))
""",
        ),
    ),
    good=(
        Example(source=_EVALUATE.replace("def evaluate", "@torch.no_grad()\ndef evaluate")),
        Example(
            title="among other contexts",
            source="""
import torch

def evaluate(model, loader):
    model.eval()
    with torch.autocast("cuda"), torch.inference_mode():
        for x in loader:
            print(model(x))
""",
        ),
        Example(
            title="a decorator of the script's own",
            source=_EVALUATE.replace("def evaluate", "@make_nograd_func\ndef evaluate"),
        ),
        Example(
            title="called under no_grad",
            source=_EVALUATE
            + """

def main(model, loader):
    with torch.no_grad():
        evaluate(model, loader)
""",
        ),
        Example(
            title="gradients are wanted: an attack, an explanation",
            source="""
import torch

def attack(model, loader, loss_fn):
    model.eval()
    for x, y in loader:
        x.requires_grad_(True)
        loss_fn(model(x), y).backward()
""",
        ),
        Example(
            title="one function for both modes",
            source="""
import torch

def run(model, loader, is_train):
    model.train() if is_train else model.eval()
    with torch.set_grad_enabled(is_train):
        for x in loader:
            print(model(x))
""",
        ),
        Example(
            title="switched off for the whole script",
            source="""
import torch

torch.set_grad_enabled(False)
"""
            + _EVALUATE.replace("\nimport torch\n", ""),
        ),
        Example(
            title="a unit test of a model",
            source="""
def test_steps_agree(model, x):
    model.eval()
    for part in x:
        assert model(part).isfinite().all()
""",
        ),
        Example(
            title="a model that is trained again before it is called",
            source="""
def fit(model, loader, score):
    model.eval()
    score(model)
    model.train()
    for x in loader:
        model(x)
""",
        ),
    ),
)

_WORDS: Final = ("grad", "inference_mode", "backward", "optim")
"""A function that speaks of any of these is not only an evaluation, or knows what it does."""
_TEST_SET: Final = re.compile(r"\b(\w+_)?(val|valid|validation|test|eval)_?(data_?)?(loader|dl)\b", re.IGNORECASE)
_NO_GRAD: Final = re.compile(r"torch\.(no_grad|inference_mode)\(\)")
_FILE_WORDS: Final = (
    "set_grad_enabled(False)",
    "requires_grad_(False)",
    "requires_grad = False",
    "no_grad().__enter__",
)


_Mode: TypeAlias = tuple[int, str | None, str]
"""The line, the model, and ``train`` or ``eval``."""


def check(file: SourceFile) -> Iterator[Finding]:
    """The first forward of each function that evaluates in a loop with autograd on."""
    if any(word in file.text.text for word in _FILE_WORDS):
        return
    modes = _modes(file)
    for root in file.flow.roots:
        found = _unguarded(file, root, modes.get(root, []))
        if found is not None and not _is_guarded(file, root, found):
            yield file.finding(
                INFO,
                found,
                f"{ast.unparse(found.func)} only evaluates here, and its graph is recorded: no torch.no_grad()",
                fix=_fix(file, root),
            )


def _unguarded(file: SourceFile, root: ast.Module | Function, modes: list[_Mode]) -> ast.Call | None:
    """The first forward in a loop after ``.eval()`` of the same model, with no ``.train()`` in between."""
    for event in file.flow.events_in(root):
        if event.act is not Act.FORWARD or not isinstance(event.node, ast.Call):
            continue
        call = event.node
        name = dotted(call.func)
        before = [mode for line, model, mode in modes if model == name and line < call.lineno]
        loops = file.tree.loops(call)
        is_eval = before[-1] == "eval" if before else any(_is_over_test_set(loop) for loop in loops)
        if loops and is_eval and not file.kinds.is_under_no_grad(call):
            return call
    return None


def _is_over_test_set(loop: Loop) -> bool:
    return not isinstance(loop, ast.While) and bool(_TEST_SET.search(ast.unparse(loop.iter)))


def _modes(file: SourceFile) -> dict[ast.Module | Function, list[_Mode]]:
    """Each ``model.eval()`` and ``model.train()``, by the function it stands in, where that has an ``eval()``."""
    found: dict[ast.Module | Function, list[_Mode]] = {}
    for call in file.tree.nodes(ast.Call):
        match call.func:
            case ast.Attribute(attr="eval" | "train" as mode, value=model):
                is_train = mode == "train" and not _is_false(call)
                one = (call.lineno, dotted(model), "train" if is_train else "eval")
                found.setdefault(file.tree.function(call) or file.tree.root, []).append(one)
            case _:
                continue
    return {root: modes for root, modes in found.items() if any(mode == "eval" for _, _, mode in modes)}


def _is_false(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value is False


def _is_guarded(file: SourceFile, root: ast.Module | Function, found: ast.Call) -> bool:
    """Whether gradients are wanted in ``root``, or switched off around it."""
    if isinstance(root, ast.Module):
        return any(word in file.text.text for word in _WORDS)
    if is_unit_test(file.tree, root.body[0]):
        return True
    text = ast.unparse(root).replace("autograd.Variable", "Variable")
    if _is_guarded_in_one_arm(file, root, found):
        text = _NO_GRAD.sub("", text)
    if any(word in text.lower() for word in _WORDS):
        return True
    if any("grad" in ast.unparse(one) for one in file.tree.ancestors(root) if isinstance(one, ast.FunctionDef)):
        return True
    return any(_is_called_without_grad(file, call) for call in _callers(file, root))


def _is_guarded_in_one_arm(file: SourceFile, root: Function, found: ast.Call) -> bool:
    """Whether the same model is called under no_grad elsewhere in the same loop: forgotten here, not left out."""
    loops, name = file.tree.loops(found), dotted(found.func)
    return any(
        event.act is Act.FORWARD
        and isinstance(event.node, ast.Call)
        and dotted(event.node.func) == name
        and file.tree.loops(event.node) == loops
        and file.kinds.is_under_no_grad(event.node)
        for event in file.flow.events_in(root)
    )


def _callers(file: SourceFile, function: Function) -> Iterator[ast.Call]:
    """Whatever calls a function of that name, as a method of any object too."""
    for call in file.tree.nodes(ast.Call):
        if ast.unparse(call.func).rpartition(".")[2] == function.name:
            yield call


def _is_called_without_grad(file: SourceFile, call: ast.Call) -> bool:
    if file.kinds.is_under_no_grad(call):
        return True
    caller = file.tree.function(call)
    return caller is not None and any("grad" in ast.unparse(one) for one in caller.decorator_list)


def _fix(file: SourceFile, root: ast.Module | Function) -> Fix | None:
    """Decorate the function."""
    if isinstance(root, ast.Module) or root.decorator_list:
        return None
    imported = file.edit.import_module("torch", ast.copy_location(ast.Name(id="torch"), root))
    if imported is None:
        return None
    name, edits = imported
    return fix(file.edit.insert_before(root, f"@{name}.no_grad()"), *edits, safe=False)


RULE = Rule(info=INFO, check=check, words=(".eval()", ".train(False)", "loader"), off_under=TRAINERS)
