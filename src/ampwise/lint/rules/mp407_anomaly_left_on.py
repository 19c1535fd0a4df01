"""MP407: autograd's anomaly detection is on in every run."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.regions import argument
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="MP407",
    name="anomaly-left-on",
    severity=Severity.INFO,
    why="Anomaly detection records a stack trace for every operator and checks every gradient for nan, which waits for "
    "the device each time. Training runs several times slower.",
    remedy="Delete it once the nan is found, or put it behind a flag.",
    evidence="PyTorch's autograd reference: 'This mode should be enabled only for debugging as the different tests "
    "will slow down your program execution'.",
    bad=(
        Example(
            source="""
import torch

torch.autograd.set_detect_anomaly(True)

def train_step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).backward()
    optimizer.step()
""",
        ),
        Example(
            title="around a step",
            source="""
import torch

def train_step(model, optimizer, x):
    optimizer.zero_grad()
    with torch.autograd.detect_anomaly():
        model(x).backward()
    optimizer.step()
""",
        ),
    ),
    good=(
        Example(
            title="behind a flag",
            source="""
import torch

def main(args):
    if args.debug:
        torch.autograd.set_detect_anomaly(True)
    torch.autograd.set_detect_anomaly(args.anomaly)
""",
        ),
        Example(
            title="off",
            source="""
import torch

torch.autograd.set_detect_anomaly(False)
""",
        ),
        Example(
            title="for the sake of its stack traces, which wait for nothing",
            source="""
import torch

def train_step(model, x):
    with torch.autograd.detect_anomaly(check_nan=False):
        model(x).backward()
""",
        ),
        Example(
            title="in a test",
            source="""
import torch

def test_backward(model, x):
    with torch.autograd.set_detect_anomaly(True):
        model(x).backward()
""",
        ),
    ),
)

_SWITCHES: Final = frozenset({
    "torch.autograd.set_detect_anomaly",
    "torch.autograd.detect_anomaly",
    "torch.autograd.anomaly_mode.set_detect_anomaly",
    "torch.autograd.anomaly_mode.detect_anomaly",
})  # fmt: skip


def check(file: SourceFile) -> Iterator[Finding]:
    """Every switch to anomaly detection that no condition and no test stands around."""
    for call in file.tree.nodes(ast.Call):
        name = file.names.resolve(call.func) or ""
        if name not in _SWITCHES or _is_guarded(file, call):
            continue
        is_region = name.endswith(".detect_anomaly")
        mode = argument(call, "mode", 0)
        is_on = is_region or (isinstance(mode, ast.Constant) and bool(mode.value))
        checks = argument(call, "check_nan", 0 if is_region else 1)
        if is_on and (checks is None or not isinstance(checks, ast.Constant) or checks.value):
            yield file.finding(INFO, call, f"{ast.unparse(call.func)}() is on in every run: it is for debugging")


def _is_guarded(file: SourceFile, call: ast.Call) -> bool:
    for outer in file.tree.ancestors(call):
        if isinstance(outer, ast.IfExp | ast.While | ast.ExceptHandler):
            return True
        if isinstance(outer, ast.If) and "__name__" not in ast.unparse(outer.test):
            return True
        if isinstance(outer, ast.FunctionDef) and "test" in outer.name:
            return True
    return False


RULE = Rule(info=INFO, check=check, words=("detect_anomaly",))
