"""MP405: TF32 is set through two interfaces of torch that contradict each other."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ampwise.lint.names import position
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

INFO = RuleInfo(
    id="MP405",
    name="tf32-conflict",
    severity=Severity.ERROR,
    why="torch has three switches for TF32 in matrix products: set_float32_matmul_precision, "
    "backends.cuda.matmul.allow_tf32 and backends.cuda.matmul.fp32_precision. Where a later one contradicts an "
    "earlier one, whatever reads the earlier one next, torch.compile among others, raises RuntimeError.",
    remedy="Set one of them, once: torch.set_float32_matmul_precision('high').",
    evidence="Measured with torch 2.13: set_float32_matmul_precision('high'), then allow_tf32 = False, and "
    "get_float32_matmul_precision() raises; so does reading allow_tf32 after fp32_precision = 'tf32'. "
    "pytorch#166387, pytorch#179445, transformers#42371. After set_float32_matmul_precision, called last, all agree.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source="""
import torch

torch.set_float32_matmul_precision("high")
torch.backends.cuda.matmul.allow_tf32 = False
""",
            fixed="""
import torch

torch.set_float32_matmul_precision("high")
torch.set_float32_matmul_precision("highest")
""",
        ),
        Example(
            title="medium is no TF32 that allow_tf32 knows",
            source="""
import torch

torch.set_float32_matmul_precision("medium")
torch.backends.cuda.matmul.allow_tf32 = True
""",
            fixed="""
import torch

torch.set_float32_matmul_precision("medium")
torch.set_float32_matmul_precision("high")
""",
        ),
        Example(
            title="the new interface after the old",
            source="""
import torch

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cuda.matmul.fp32_precision = "ieee"
""",
            fixed="""
import torch

torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("highest")
""",
        ),
        Example(
            title="the new interface, and a look at the old",
            source="""
import torch

torch.backends.cuda.matmul.fp32_precision = "tf32"
print(torch.get_float32_matmul_precision())
""",
            fixed="""
import torch

torch.set_float32_matmul_precision("high")
print(torch.get_float32_matmul_precision())
""",
        ),
    ),
    good=(
        Example(
            source="""
import torch

torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
""",
        ),
        Example(
            title="two switches that agree",
            source="""
import torch

torch.set_float32_matmul_precision("high")
torch.backends.cuda.matmul.allow_tf32 = True
""",
        ),
        Example(
            title="set_float32_matmul_precision last, which sets the others",
            source="""
import torch

torch.backends.cuda.matmul.allow_tf32 = False
torch.set_float32_matmul_precision("high")
""",
        ),
        Example(
            title="one or the other by the version of torch",
            source="""
import torch

if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    torch.backends.cuda.matmul.fp32_precision = "ieee"
else:
    torch.backends.cuda.matmul.allow_tf32 = True
""",
        ),
        Example(
            title="in different functions",
            source="""
import torch

def fast():
    torch.set_float32_matmul_precision("high")

def exact():
    torch.backends.cuda.matmul.allow_tf32 = False
""",
        ),
    ),
)

_SET: Final = "torch.set_float32_matmul_precision"
_GET: Final = "torch.get_float32_matmul_precision"
_LEGACY: Final = "torch.backends.cuda.matmul.allow_tf32"
_MATMUL: Final = "torch.backends.cuda.matmul.fp32_precision"
_NEW: Final = frozenset({_MATMUL, "torch.backends.fp32_precision"})
_AGREE: Final = frozenset({
    ("high", "True"), ("highest", "True"), ("highest", "False"), ("True", "tf32"), ("False", "ieee"), ("high", "tf32"),
    ("highest", "ieee"),
})  # fmt: skip
"""Earlier and later value that torch takes together."""


@dataclass(frozen=True, slots=True)
class _Switch:
    """One place where TF32 is set to a literal, or read (value None)."""

    name: str
    value: str | None
    node: ast.expr
    block: ast.AST | None
    """What holds the statement: switches in other blocks may never run together."""


def check(file: SourceFile) -> Iterator[Finding]:
    """Every switch that contradicts, or reads past, the one before it in the same block."""
    switches = sorted(_switches(file), key=lambda one: position(one.node))
    for number, later in enumerate(switches):
        earlier = next((one for one in reversed(switches[:number]) if one.block is later.block and one.value), None)
        if earlier is None or not _contradict(earlier, later, switches[:number]):
            continue
        did = f"is set to {later.value} after" if later.value else "is read after"
        message = f"{_short(later.name)} {did} {_short(earlier.name)} was set to {earlier.value}: torch raises"
        yield file.finding(INFO, later.node, message, fix=_fix(file, later if later.value else earlier))


def _contradict(earlier: _Switch, later: _Switch, before: list[_Switch]) -> bool:
    if later.value is None:
        only_new = all(one.name in _NEW for one in before if one.value)
        return earlier.name in _NEW and only_new and earlier.value == "tf32"
    if later.name in {earlier.name, _SET} or earlier.name in _NEW:
        return False
    return (earlier.value, later.value) not in _AGREE


def _fix(file: SourceFile, switch: _Switch) -> Fix | None:
    """Say the same by set_float32_matmul_precision, which sets all the others too."""
    precision = {"True": "high", "tf32": "high", "False": "highest", "ieee": "highest"}.get(switch.value or "")
    statement = file.tree.statement(switch.node)
    if switch.name not in {_LEGACY, _MATMUL} or precision is None or not isinstance(statement, ast.Assign):
        return None
    imported = file.edit.import_module("torch", switch.node)
    if imported is None or len(statement.targets) != 1:
        return None
    name, edits = imported
    return fix(file.edit.replace(statement, f'{name}.set_float32_matmul_precision("{precision}")'), *edits, safe=False)


def _switches(file: SourceFile) -> Iterator[_Switch]:
    for node in file.tree.nodes(ast.Assign):
        name = file.names.resolve(node.targets[0]) or ""
        if (name == _LEGACY or name in _NEW) and isinstance(node.value, ast.Constant):
            yield _Switch(name, str(node.value.value), node.targets[0], file.tree.parent(node))
    for call in file.tree.nodes(ast.Call):
        name = file.names.resolve(call.func)
        block = file.tree.parent(file.tree.statement(call))
        if name == _SET and call.args and isinstance(call.args[0], ast.Constant):
            yield _Switch(_SET, str(call.args[0].value), call, block)
        elif name == _GET:
            yield _Switch(_GET, None, call, block)
    for node in file.tree.nodes(ast.Attribute):
        if node.attr == "allow_tf32" and isinstance(node.ctx, ast.Load) and file.names.resolve(node) == _LEGACY:
            yield _Switch(_LEGACY, None, node, file.tree.parent(file.tree.statement(node)))


def _short(name: str) -> str:
    return name.removeprefix("torch.")


RULE = Rule(info=INFO, check=check, words=("allow_tf32", "fp32_precision"))
