"""MP408: the script waits for the device in every training iteration, on purpose."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_LOOP: Final = """
import time
import torch

def train(model, optimizer, loader):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
"""

INFO = RuleInfo(
    id="MP408",
    name="synchronize-in-loop",
    severity=Severity.INFO,
    why="torch.cuda.synchronize() stops the script until the device has finished. The device then idles while the next "
    "iteration's kernels are launched; nothing in training needs it, torch orders its work by itself.",
    remedy="Delete it, or call it only in the iterations that are timed.",
    evidence="PyTorch's performance tuning guide, 'Avoid unnecessary CPU-GPU synchronization'.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_LOOP
            + """        torch.cuda.synchronize()
""",
            fixed=_LOOP,
        ),
        Example(
            title="through a name",
            source="""
import torch

wait = torch.cuda.synchronize

def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        wait()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
""",
            fixed="""
import torch

wait = torch.cuda.synchronize

def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
""",
        ),
    ),
    good=(
        Example(
            title="seldom",
            source=_LOOP
            + """
        if i % 100 == 0:
            torch.cuda.synchronize()
""",
        ),
        Example(
            title="for a clock",
            source=_LOOP
            + """
        torch.cuda.synchronize()
        seconds = time.perf_counter()
""",
        ),
        Example(
            title="behind the loop",
            source=_LOOP
            + """
    torch.cuda.synchronize()
""",
        ),
        Example(
            title="a benchmark",
            source=_LOOP.replace("def train", "def benchmark")
            + """
        torch.cuda.synchronize()
""",
        ),
    ),
)

_CLOCK: Final = re.compile(
    r"\btime\.(time|perf_counter|monotonic)|perf_counter|default_timer|elapsed_time|\btime\(\)|\.record\(\)|timer|timeit"
    r"|stopwatch|max_memory|memory_allocated", re.IGNORECASE,
)  # fmt: skip
_BENCHMARK: Final = re.compile(r"bench|profil|timing|speed|latency|throughput|measure", re.IGNORECASE)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every synchronize that runs in each iteration of a training loop and that no clock is read beside."""
    for event in file.flow.events:
        if event.act is not Act.SYNC or event.via is not None:
            continue
        hot = file.loops.hot(event.node)
        if hot is None or _is_timed(file, event.node) or _BENCHMARK.search(hot.label):
            continue
        message = f"{ast.unparse(event.node)} runs in every iteration of {hot.label}"
        yield file.finding(INFO, event.node, message, fix=_fix(file, event.node), group=hot.label)


def _is_timed(file: SourceFile, node: ast.expr) -> bool:
    """Whether a statement next to it, or the other end of its `if`, reads a clock."""
    statement: ast.stmt = file.tree.statement(node)
    for _ in range(2):
        block = file.tree.block(statement)
        index = block.index(statement)
        beside = [*block[max(index - 1, 0) : index], *block[index + 1 : index + 2]]
        if any(_CLOCK.search(ast.unparse(one)) for one in beside if not isinstance(one, ast.For | ast.While)):
            return True
        parent = file.tree.parent(statement)
        if not isinstance(parent, ast.If):
            return False
        statement = parent
    return False


def _fix(file: SourceFile, node: ast.expr) -> Fix | None:
    statement = file.tree.statement(node)
    is_alone = isinstance(statement, ast.Expr) and statement.value is node
    return fix(file.edit.delete(statement), safe=False) if is_alone else None


RULE = Rule(info=INFO, check=check, words=("synchronize",))
