"""MP204: torch.cuda.amp and torch.cpu.amp, which torch.amp replaced."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ampwise.lint.imports import move_from_import, rename_import
from ampwise.lint.names import Binding, Bound, canonical
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Edit, Example, Finding, Fix, Fixable, RuleInfo, Severity

INFO = RuleInfo(
    id="MP204",
    name="deprecated-amp-api",
    severity=Severity.WARNING,
    why="torch.cuda.amp.* and torch.cpu.amp.* are deprecated since torch 2.4: each use prints a FutureWarning, and a "
    "later release takes them away.",
    remedy='Write torch.amp.autocast("cuda"), torch.amp.GradScaler("cuda"), '
    'torch.amp.custom_fwd(device_type="cuda"), torch.amp.custom_bwd(device_type="cuda").',
    evidence="FutureWarning of torch 2.13 for each name. Seen 103 times in 41 of 48 public training scripts.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source="""
from torch.cuda.amp import autocast, GradScaler

scaler = GradScaler(enabled=True)
with autocast(False):
    pass
""",
            fixed="""
from torch.amp import autocast, GradScaler

scaler = GradScaler("cuda", enabled=True)
with autocast("cuda", enabled=False):
    pass
""",
            num_findings=3,
        ),
        Example(
            title="by attribute, under another name of torch",
            source="""
import torch as T

scaler = T.cuda.amp.GradScaler()
""",
            fixed="""
import torch as T

scaler = T.amp.GradScaler("cuda")
""",
        ),
        Example(
            title="a module's name, and others in the same import",
            source="""
from torch.cuda import amp, device_count

with amp.autocast(dtype=None):
    pass
""",
            fixed="""
from torch.cuda import device_count
from torch import amp

with amp.autocast("cuda", dtype=None):
    pass
""",
        ),
        Example(
            title="decorators need device_type",
            source="""
import torch

class Double(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.cuda.amp.custom_bwd
    def backward(ctx, grad):
        return 2 * grad
""",
            fixed="""
import torch

class Double(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        return 2 * grad
""",
            num_findings=2,
        ),
        Example(
            title="what the oldest torch lacks is left alone",
            source="""
from torch.cuda.amp import autocast, GradScaler

scaler = GradScaler()
with autocast():
    pass
""",
            fixed="""
from torch.cuda.amp import GradScaler
from torch.amp import autocast

scaler = GradScaler()
with autocast("cuda"):
    pass
""",
            num_findings=2,
            target_torch="2.1",
        ),
        Example(
            title="a name with a second meaning is reported, not changed",
            source="""
try:
    from torch.cuda.amp import autocast
except ImportError:
    from contextlib import nullcontext as autocast

with autocast():
    pass
""",
            num_findings=2,
        ),
    ),
    good=(
        Example(
            source="""
import torch

scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda"):
    pass
""",
        ),
        Example(
            title="a fallback for old releases",
            source="""
try:
    from torch.amp import GradScaler
except ImportError:
    from torch.cuda.amp import GradScaler

scaler = GradScaler()
""",
        ),
        Example(
            title="a branch on what torch has",
            source="""
import torch

if hasattr(torch.amp, "GradScaler"):
    scaler = torch.amp.GradScaler("cuda")
else:
    scaler = torch.cuda.amp.GradScaler()
""",
        ),
        Example(
            title="an annotation makes nothing",
            source="""
import torch

def train(scaler: torch.cuda.amp.GradScaler) -> "torch.cuda.amp.GradScaler":
    return scaler
""",
        ),
        Example(
            title="the oldest torch has nothing else",
            source="""
import torch

scaler = torch.cuda.amp.GradScaler()
""",
            target_torch="2.2",
        ),
        Example(
            title="another package's class of that name",
            source="""
from fairscale.amp import GradScaler, autocast

scaler = GradScaler()
""",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class _New:
    """What replaces a name."""

    name: str
    device: str
    release: tuple[int, int]
    """The first torch that has it."""


_RELEASES: Final = {"autocast": (1, 10), "GradScaler": (2, 3), "custom_fwd": (2, 4), "custom_bwd": (2, 4)}
_OLD: Final = {
    **{f"torch.cuda.amp.{name}": _New(f"torch.amp.{name}", "cuda", release) for name, release in _RELEASES.items()},
    "torch.cpu.amp.autocast": _New("torch.amp.autocast", "cpu", (1, 10)),
    "torch.cpu.amp.GradScaler": _New("torch.amp.GradScaler", "cpu", (2, 3)),
    "torch.get_autocast_gpu_dtype": _New("torch.get_autocast_dtype", "cuda", (2, 4)),
    "torch.set_autocast_gpu_dtype": _New("torch.set_autocast_dtype", "cuda", (2, 4)),
    "torch.get_autocast_cpu_dtype": _New("torch.get_autocast_dtype", "cpu", (2, 4)),
    "torch.set_autocast_cpu_dtype": _New("torch.set_autocast_dtype", "cpu", (2, 4)),
    "torch.is_autocast_cpu_enabled": _New("torch.is_autocast_enabled", "cpu", (2, 4)),
    "torch.set_autocast_cpu_enabled": _New("torch.set_autocast_enabled", "cpu", (2, 4)),
}
_LAST: Final = frozenset(name.rpartition(".")[2] for name in _OLD)
_MODULES: Final = frozenset({"torch.cuda.amp", "torch.cpu.amp"})
_POSITIONAL: Final = ("enabled", "dtype", "cache_enabled")
_VERSION_WORDS: Final = ("hasattr", "version", "VERSION", "TORCH_", "Version", "getattr")


@dataclass(frozen=True, slots=True)
class _Use:
    """One place that names a deprecated thing."""

    node: ast.Name | ast.Attribute
    old: str
    root: Binding | None
    """The import of the first name of the chain; None for a star import."""


def check(file: SourceFile) -> Iterator[Finding]:
    """Every import from the old modules and every use that is no annotation or fallback."""
    uses = [use for use in _uses(file) if file.supports(_OLD[use.old].release)]
    moving = _Moving(file, [use for use in uses if _is_moved_by_import(use)])
    for statement in _imports(file):
        yield file.finding(INFO, statement, _import_message(statement), fix=moving.fix_of(statement))
    for use in uses:
        one = moving.fix_of(use) if _is_moved_by_import(use) else _fix_here(file, use)
        yield file.finding(INFO, use.node, _message(use), fix=one)


def _uses(file: SourceFile) -> Iterator[_Use]:
    imported = {alias.asname or alias.name for node in file.tree.nodes(ast.ImportFrom) for alias in node.names}
    imported |= _LAST if file.names.stars else set()
    for node in (*file.tree.nodes(ast.Attribute), *file.tree.nodes(ast.Name)):
        last = node.attr if isinstance(node, ast.Attribute) else node.id
        if not isinstance(node.ctx, ast.Load) or last not in (_LAST if isinstance(node, ast.Attribute) else imported):
            continue
        names = file.names.resolve_all(node)
        old = next((name for name in names if name in _OLD), None)
        is_covered = any(name.startswith(("torch.amp.", "torch.autocast")) for name in names)
        if old is not None and not is_covered and not _is_quiet(file, node):
            yield _Use(node, old, _root(file, node))


def _root(file: SourceFile, node: ast.expr) -> Binding | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return next(iter(file.names.lookup(node)), None)


def _imports(file: SourceFile) -> Iterator[ast.ImportFrom]:
    for statement in file.tree.nodes(ast.ImportFrom):
        names = [canonical(f"{statement.module}.{alias.name}") for alias in statement.names]
        old = [_OLD[name] for name in names if name in _OLD]
        if not old or _is_fallback(file, statement) or not any(file.supports(new.release) for new in old):
            continue
        bound = [file.names.visible(alias.asname or alias.name, statement) for alias in statement.names]
        if not any(b.how is Bound.IMPORT and b.target.startswith("torch.amp.") for found in bound for b in found):
            yield statement


def _is_quiet(file: SourceFile, node: ast.expr) -> bool:
    """Whether the place makes nothing: an annotation, a check of a type; or is a fallback for old releases."""
    child: ast.AST = node
    for outer in file.tree.ancestors(node):
        match outer:
            case ast.arg() | ast.ImportFrom():
                return True
            case ast.AnnAssign(annotation=annotation) if annotation is child:
                return True
            case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns) if returns is child:
                return True
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass")):
                return True
            case ast.stmt():
                break
            case _:
                child = outer
    return _is_fallback(file, node)


def _is_fallback(file: SourceFile, node: ast.AST) -> bool:
    """Whether ``node`` stands in an arm chosen by torch's release."""
    child = node
    for outer in file.tree.ancestors(node):
        if isinstance(outer, ast.If | ast.IfExp) and child is not outer.test:
            text = ast.unparse(outer.test)
            if any(word in text for word in _VERSION_WORDS):
                return True
        if isinstance(outer, ast.ExceptHandler):
            attempt = file.tree.parent(outer)
            if isinstance(attempt, ast.Try) and any(_names_new(file, statement) for statement in attempt.body):
                return True
        child = outer
    return False


def _names_new(file: SourceFile, statement: ast.stmt) -> bool:
    text = file.text.segment(statement)
    return "torch.amp" in text or "torch import autocast" in text or "torch.autocast" in text


def _is_moved_by_import(use: _Use) -> bool:
    """Whether the use is put right by importing its first name from elsewhere."""
    return use.root is not None and canonical(use.root.target) in {*_OLD, *_MODULES}


class _Moving:
    """The one fix that imports names from torch.amp and adapts all their uses: whole or not at all."""

    def __init__(self, file: SourceFile, uses: list[_Use]) -> None:
        self._file = file
        self._roots: dict[str, list[_Use]] = {}
        for use in uses:
            if use.root is not None:
                self._roots.setdefault(use.root.name, []).append(use)
        self._moved = {name for name in self._roots if self._can_move(name)}
        self._fix = self._make()

    def fix_of(self, place: _Use | ast.ImportFrom) -> Fix | None:
        """The fix, where it puts this place right."""
        if isinstance(place, ast.ImportFrom):
            return self._fix if any((alias.asname or alias.name) in self._moved for alias in place.names) else None
        return self._fix if place.root is not None and place.root.name in self._moved else None

    def _can_move(self, name: str) -> bool:
        """Whether every mention of ``name`` is a use that can be adapted, and it always means the old import."""
        uses = self._roots[name]
        nodes = {use.root.node for use in uses if use.root is not None}
        found = [b for use in uses for b in self._file.names.visible(name, use.node)]
        if any(b.node not in nodes for b in found) or any(_at_call(self._file, use) is None for use in uses):
            return False
        handled = {id(_first(use.node)) for use in uses}
        mentions = [node for node in self._file.tree.nodes(ast.Name) if node.id == name and id(node) not in handled]
        return all(_is_quiet(self._file, mention) for mention in mentions)

    def _make(self) -> Fix | None:
        edits: list[Edit | None] = []
        nodes = {use.root.node: use.root for name in self._moved for use in self._roots[name] if use.root is not None}
        for node in nodes:
            edits.extend(self._import_edits(node))
        for name in sorted(self._moved):
            for use in self._roots[name]:
                edits.extend(_at_call(self._file, use) or (None,))
        return fix(*edits, safe=True)

    def _import_edits(self, node: ast.AST) -> Iterator[Edit | None]:
        text = self._file.text
        if isinstance(node, ast.ImportFrom):
            moved = {alias.name for alias in node.names if (alias.asname or alias.name) in self._moved}
            module = "torch" if canonical(f"{node.module}.{min(moved, default='')}") in _MODULES else "torch.amp"
            yield move_from_import(text, node, moved, module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname in self._moved:
                    yield rename_import(text, alias, "torch.amp")


def _first(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _fix_here(file: SourceFile, use: _Use) -> Fix | None:
    """The fix of a use by attribute: ``torch.cuda.amp.X`` becomes ``torch.amp.X``."""
    edits = _at_call(file, use)
    torch = _torch(file, use.node)
    if edits is None or torch is None or not isinstance(use.node, ast.Attribute):
        return None
    name, imports = torch
    new = file.edit.replace(use.node, name + _OLD[use.old].name.removeprefix("torch"))
    merged = [
        Edit(start=new.start, end=new.end, text=new.text + edit.text) if edit.start == new.end else edit
        for edit in edits
    ]
    return fix(*(merged if any(edit.start == new.end for edit in edits) else [new, *edits]), *imports, safe=True)


def _torch(file: SourceFile, node: ast.expr) -> tuple[str, tuple[Edit, ...]] | None:
    """How ``torch`` is spelt at ``node``, with the edits that make it so."""
    inner = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
        if file.names.resolve(inner) == "torch":
            return file.text.segment(inner), ()
    return file.edit.import_module("torch", node)


def _at_call(file: SourceFile, use: _Use) -> tuple[Edit, ...] | None:
    """The edits at a use but for its name: the device, and names for arguments that move; None where it is no call."""
    parent = file.tree.parent(use.node)
    new = _OLD[use.old]
    last = new.name.rpartition(".")[2]
    if isinstance(parent, ast.Call) and parent.func is use.node:
        return _call_edits(file, parent, last, new.device)
    is_decorator = isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and use.node in parent.decorator_list
    if is_decorator and last.startswith("custom_"):
        return (file.edit.insert(file.text.end(use.node), f'(device_type="{new.device}")'),)
    is_partial = isinstance(parent, ast.Call) and file.names.resolve(parent.func) == "functools.partial"
    if is_partial and isinstance(parent, ast.Call) and parent.args == [use.node] and not last.startswith("custom_"):
        return (file.edit.insert(file.text.end(use.node), f', "{new.device}"'),)
    return None


def _call_edits(file: SourceFile, call: ast.Call, last: str, device: str) -> tuple[Edit, ...] | None:
    opening = _opening(file, call)
    if opening is None:
        return None
    if last.startswith("custom_"):
        if call.args:
            return (file.edit.insert(file.text.end(call.args[-1]), f', device_type="{device}"'),)
        return (file.edit.insert(opening, _first_argument(call, f'device_type="{device}"')),)
    edits = [file.edit.insert(opening, _first_argument(call, f'"{device}"'))]
    if last == "autocast":
        if any(isinstance(argument, ast.Starred) for argument in call.args) or len(call.args) > len(_POSITIONAL):
            return None
        named = [
            file.edit.insert(file.text.start(one), f"{name}=")
            for one, name in zip(call.args, _POSITIONAL, strict=False)
        ]
        if named and named[0].start == edits[0].start:
            edits = [Edit(start=opening, end=opening, text=edits[0].text + named.pop(0).text)]
        edits += named
    return tuple(edits)


def _first_argument(call: ast.Call, text: str) -> str:
    return f"{text}, " if call.args or call.keywords else text


def _opening(file: SourceFile, call: ast.Call) -> int | None:
    """The byte behind the call's opening parenthesis."""
    end = file.text.end(call.func)
    found = file.text.data.find(b"(", end)
    return found + 1 if found >= 0 and not file.text.data[end:found].strip() else None


def _message(use: _Use) -> str:
    new = _OLD[use.old]
    argument = f'device_type="{new.device}"' if ".custom_" in new.name else f'"{new.device}"'
    return f"{use.old} is deprecated: write {new.name}({argument}{_more(use)})"


def _more(use: _Use) -> str:
    return ", ..." if use.old.rpartition(".")[2].startswith("set_") else ""


def _import_message(statement: ast.ImportFrom) -> str:
    names = [alias.name for alias in statement.names if canonical(f"{statement.module}.{alias.name}") in _OLD]
    return f"{statement.module} is deprecated: import {', '.join(names)} from torch.amp"


RULE = Rule(info=INFO, check=check, words=("cuda", "cpu", "autocast"))
