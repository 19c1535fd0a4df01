"""MP402: the allocator's cache is emptied in every training iteration."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.loops import Hot
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import LOOPS
from ampwise.records.finding import Example, Finding, Fixable, RuleInfo, Severity

_LOOP: Final = """
import torch

def train(model, optimizer, loader):
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = model(x, y)
            loss.backward()
            optimizer.step()
"""

INFO = RuleInfo(
    id="MP402",
    name="empty-cache-in-loop",
    severity=Severity.INFO,
    why="torch.cuda.empty_cache() waits for the device and gives all free blocks back, which the next iteration must "
    "ask the driver for again. It frees nothing that a tensor still uses.",
    remedy="Delete it, or call it once an epoch.",
    evidence="PyTorch's CUDA notes, 'Memory management': empty_cache() does not increase the memory available to "
    "PyTorch.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source=_LOOP
            + """            torch.cuda.empty_cache()
""",
            fixed=_LOOP,
        ),
        Example(
            title="in a function of one iteration",
            source="""
import torch

def train_step(model, optimizer, x, y):
    torch.cuda.empty_cache()
    optimizer.zero_grad()
    loss = model(x, y)
    loss.backward()
    optimizer.step()

def train(model, optimizer, loader):
    for x, y in loader:
        train_step(model, optimizer, x, y)
""",
            fixed="""
import torch

def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = model(x, y)
    loss.backward()
    optimizer.step()

def train(model, optimizer, loader):
    for x, y in loader:
        train_step(model, optimizer, x, y)
""",
        ),
    ),
    good=(
        Example(
            title="once an epoch",
            source=_LOOP
            + """
        torch.cuda.empty_cache()
""",
        ),
        Example(
            title="seldom",
            source=_LOOP
            + """
            if epoch % 100 == 0:
                torch.cuda.empty_cache()
""",
        ),
        Example(
            title="after running out of memory",
            source="""
import torch

def train(model, optimizer, loader):
    for x, y in loader:
        try:
            optimizer.zero_grad()
            loss = model(x, y)
            loss.backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
""",
        ),
    ),
)

_EMPTIES: Final = re.compile(r"torch\.(cuda|xpu|mps|npu|accelerator)(\.memory)?\.empty_cache")


def check(file: SourceFile) -> Iterator[Finding]:
    """Every such call that runs in each iteration of a training loop."""
    for call in file.tree.nodes(ast.Call):
        if not _EMPTIES.fullmatch(file.names.resolve(call.func) or ""):
            continue
        hot = file.loops.hot(call)
        if hot is None or _is_rescue(file, call) or _has_own_loop(file, hot):
            continue
        statement = file.tree.statement(call)
        is_alone = isinstance(statement, ast.Expr) and statement.value is call
        edit = fix(file.edit.delete(statement), safe=True) if is_alone else None
        message = f"{ast.unparse(call.func)}() runs in every iteration of {hot.label}"
        yield file.finding(INFO, call, message, fix=edit, group=hot.label)


def _has_own_loop(file: SourceFile, hot: Hot) -> bool:
    """Whether the function taken for an iteration loops, or calls one that does, and may be the whole training."""
    if hot.loop is not None or hot.function is None:
        return False
    called = [event.callee for event in file.flow.events_in(hot.function) if event.callee is not None]
    return any(loop for function in (hot.function, *called) for loop in file.tree.inside(function, *LOOPS))


def _is_rescue(file: SourceFile, call: ast.Call) -> bool:
    """Whether an exception or an `if` about memory leads there."""
    for outer in file.tree.ancestors(call):
        if isinstance(outer, ast.ExceptHandler):
            return True
        if isinstance(outer, ast.If) and re.search("memory|oom|empty_cache", ast.unparse(outer.test), re.IGNORECASE):
            return True
    return False


RULE = Rule(info=INFO, check=check, words=("empty_cache",))
