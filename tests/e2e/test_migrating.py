"""The tables of calls name what the installed libraries, and ampwise, really have."""

import ast
import importlib
import inspect
import re

import pytest

from documentation import ROOT, sections

TABLES = dict(sections(ROOT / "docs/migrating.md"))
ROW = re.compile(r"^\| (`.*) \| (.*) \|$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
LIBRARIES = {
    "From torch.amp": "torch.nn.utils torch torch.amp",
    "From Accelerate": "accelerate accelerate.utils",
    "From Lightning": "lightning lightning.pytorch.plugins ampwise.integrations.lightning",
}
OURS = "ampwise ampwise.runtime.scaling.result ampwise.integrations.lightning lightning torch.distributed.fsdp"
INSTANCES = {
    "step": "TrainStep",
    "scaler": "GradScaler",
    "result": "StepResult",
    "accelerator": "Accelerator",
    "fabric": "Fabric",
}
USERS = {
    "model",
    "optimizer",
    "loader",
    "loss",
    "other",
    "path",
    "folder",
    "params",
    "state",
    "torch",
    "ampwise",
    "true",
}
"""Names of the reader's own."""

pytestmark = pytest.mark.slow  # the libraries take their time to import


def calls(spans):
    """What of a table's cell is Python: names of attributes, and calls."""
    for span in spans:
        try:
            tree = ast.parse(span.removeprefix("@"), mode="eval")
        except SyntaxError:  # a command, a key of a file, a statement
            continue
        if isinstance(tree.body, ast.Call | ast.Attribute):
            yield span, tree


def found(name, modules):
    for module in map(importlib.import_module, modules.split()):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{name} is in none of {modules}")


def resolve(node, modules):
    """The thing that an expression of the table names."""
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "loss":
            return None
        whole = resolve(node.value, modules)
        return None if whole is None else getattr(whole, node.attr)
    if isinstance(node, ast.Name):
        if node.id in {"torch", "ampwise"}:
            return importlib.import_module(node.id)
        if node.id in INSTANCES:
            return found(INSTANCES[node.id], modules)
        return None if node.id in USERS else found(node.id, modules)
    return None


def check(tree, modules):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolve(node, modules)
        if not isinstance(node, ast.Call):
            continue
        called = resolve(node.func, modules)
        if called is None:
            continue
        if isinstance(node.func, ast.Name) and node.func.id in INSTANCES:
            called = called.__call__
        is_method = inspect.isfunction(called) and "self" in inspect.signature(called).parameters
        arguments = [object(), *node.args] if is_method else node.args
        inspect.signature(called).bind_partial(*arguments, **{one.arg: one.value for one in node.keywords})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("heading", LIBRARIES)
def test_their_calls_are_those_of_the_installed_library(heading):
    seen = 0
    for theirs, _ in ROW.findall(TABLES[heading]):
        for _, tree in calls(SPAN.findall(theirs)):
            check(tree, LIBRARIES[heading])
            seen += 1
    assert seen >= 8


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("heading", [one for one in TABLES if one.startswith("From")])
def test_our_calls_are_ours(heading):
    seen = 0
    for _, ours in ROW.findall(TABLES[heading]):
        for _, tree in calls(SPAN.findall(ours)):
            check(tree, OURS)
            seen += 1
    assert seen >= 6
