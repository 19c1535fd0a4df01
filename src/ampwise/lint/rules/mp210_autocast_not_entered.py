"""MP210: autocast is constructed and never entered."""

import ast
from collections.abc import Iterator

from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.lint.torch_names import AUTOCASTS
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="MP210",
    name="autocast-not-entered",
    severity=Severity.ERROR,
    why="torch.autocast is a context manager: constructing it switches nothing on. The code behind the statement runs "
    "in float32.",
    remedy="Write `with torch.autocast(...):` around the forward pass and the loss.",
    evidence="torch.amp reference: autocast instances 'serve as context managers or decorators'.",
    bad=(
        Example(
            source="""
import torch

def forward(model, x):
    torch.autocast("cuda", dtype=torch.bfloat16)
    return model(x)
""",
        ),
        Example(
            title="`and` between two contexts, of which only the last is entered",
            source="""
import torch

def forward(model, x):
    with torch.autocast("cuda") and torch.no_grad():
        return model(x)
""",
        ),
    ),
    good=(
        Example(
            source="""
import torch

def forward(model, x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(x)
""",
        ),
        Example(
            title="entered later, by hand, on a stack, or as a decorator",
            source="""
import contextlib
import torch

ctx = torch.autocast("cuda")

@torch.autocast("cuda")
def forward(model, x):
    torch.autocast("cpu").__enter__()
    with contextlib.ExitStack() as stack, ctx:
        stack.enter_context(torch.autocast("cpu"))
        return model(x)
""",
        ),
        Example(
            title="a test that construction fails",
            source="""
import pytest
import torch

def test_refused():
    with pytest.raises(ValueError):
        torch.autocast(3)
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every autocast that is a bare statement, or loses against what follows an `and`."""
    for item in file.tree.nodes(ast.withitem):
        match item.context_expr:
            case ast.BoolOp(op=ast.And(), values=[*firsts, last]):
                for one in firsts:
                    if isinstance(one, ast.Call) and file.names.resolve(one.func) in AUTOCASTS:
                        message = f"`and` enters only {ast.unparse(last)}: write a comma"
                        yield file.finding(INFO, one, message)
            case _:
                continue
    for statement in file.tree.nodes(ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call) or file.names.resolve(call.func) not in AUTOCASTS:
            continue
        if not _is_tried(file, statement):
            message = f"{ast.unparse(call.func)}(...) is never entered: what follows runs without autocast"
            yield file.finding(INFO, call, message)


def _is_tried(file: SourceFile, statement: ast.stmt) -> bool:
    """Whether only the construction matters: it is tried, or expected to raise."""
    for outer in file.tree.ancestors(statement):
        if isinstance(outer, ast.Try) and len(outer.body) == 1:
            return True
        if isinstance(outer, ast.With) and "raises" in ast.unparse(outer.items[0].context_expr):
            return True
    return False


RULE = Rule(info=INFO, check=check, words=("autocast",))
