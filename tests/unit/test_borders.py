"""Who may touch what is not ours: only interpose replaces, only compat knows private names."""

import ast
import sys
from pathlib import Path

import pytest

import ampwise

SOURCE = Path(ampwise.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
FOREIGN = {*sys.stdlib_module_names, "torch", "numpy"}
MAY_ASSIGN = {
    "interpose/seam.py": "the one place that replaces",
    "interpose/compile_caches.py": "torch's public tag on its compile caches, restored",
    "compat": "torch's own switches, set and restored",
    "runner/script.py": "a script run as __main__ has its own argv, path and excepthook",
}
MAY_BE_PRIVATE = {
    "compat": "the one place for private names",
    "runtime/scaling/scaler.py": "a drop-in for GradScaler keeps its fields",
}


def within(path, allowed):
    name = path.relative_to(SOURCE).as_posix()
    return any(name == place or name.startswith(f"{place}/") for place in allowed)


def imported(tree):
    """Local name -> dotted foreign origin."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {name: origin for name, origin in names.items() if origin.partition(".")[0] in FOREIGN}


def root(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def assignments(tree):
    """Attributes of foreign modules and classes that are set or deleted."""
    foreign = imported(tree)
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"setattr", "delattr"}:
            targets = [ast.Attribute(value=node.args[0], attr="*")]
        for target in targets:
            if isinstance(target, ast.Attribute) and root(target) in foreign:
                yield node.lineno, ast.unparse(target)


def is_private(name):
    return name.startswith("_") and not name.endswith("__") and name != "_"


def own_private_names(tree):
    """What the file itself defines, and so may use."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def private_uses(tree):
    """Private names of torch that are imported, and private attributes of objects that are not the file's own."""
    own = own_private_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("torch") and any(map(is_private, alias.name.split("."))):
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "torch":
            for alias in node.names:
                if any(map(is_private, [*node.module.split("."), alias.name])):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_only_interpose_replaces(path):
    if not within(path, MAY_ASSIGN):
        assert list(assignments(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_only_compat_knows_private_names(path):
    if not within(path, MAY_BE_PRIVATE):
        uses = list(private_uses(ast.parse(path.read_text(encoding="utf-8"))))
        assert [use for use in uses if use[1] != "sys._getframe"] == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.nn.Linear.forward = f",
        "import torch.nn as nn\ndel nn.Linear.forward",
        "from torch.optim import Optimizer\nOptimizer.step = f",
        "from torch.optim import Optimizer\nsetattr(Optimizer, name, f)",
        "import threading\nthreading.Thread.start += f",
    ],
)
def test_a_replacement_is_found(code):
    assert list(assignments(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C",
        "import torch._dynamo",
        "from torch._C import x",
        "from torch import _C",
        "tensor._version",
    ],
)
def test_a_private_name_is_found(code):
    assert list(private_uses(ast.parse(code)))


@pytest.mark.parametrize("code", ["self.x = 1", "import torch\nx = torch.nn", "class A:\n    _a: int = 1\nA()._a"])
def test_what_is_ours_is_not_found(code):
    assert not list(assignments(ast.parse(code)))
    assert not list(private_uses(ast.parse(code)))
