import ast

import pytest

from ampwise.lint.names import Bound
from ampwise.lint.tree import dotted


def last_function(file):
    """The function expression of the last call in the text."""
    return max(file.tree.nodes(ast.Call), key=lambda call: (call.lineno, call.col_offset)).func


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.cuda.amp.GradScaler()",
        "import torch as T\nT.cuda.amp.GradScaler()",
        "import torch.cuda.amp\ntorch.cuda.amp.GradScaler()",
        "import torch.cuda.amp as amp\namp.GradScaler()",
        "from torch import cuda\ncuda.amp.GradScaler()",
        "from torch.cuda import amp\namp.GradScaler()",
        "from torch.cuda.amp import GradScaler\nGradScaler()",
        "from torch.cuda.amp import GradScaler as S\nS()",
        "from torch.cuda.amp.grad_scaler import GradScaler\nGradScaler()",
        "from torch.cuda.amp import *\nGradScaler()",
        "from tools import *\nimport tools as T\nT.cuda.amp.GradScaler()",
        "import torch\nmake = torch.cuda.amp.GradScaler\nmake()",
        "def f():\n    from torch.cuda.amp import GradScaler\n    def g():\n        GradScaler()",
        "class A:\n    from torch.cuda.amp import GradScaler\n    x = GradScaler()",
        (
            "import torch\nclass A:\n    def __init__(self):\n        self.make = torch.cuda.amp.GradScaler\n"
            "    def run(self):\n        self.make()"
        ),
    ],
)
def test_every_spelling_of_an_import_is_followed(parse, source):
    file = parse(source)
    assert file.names.resolve(last_function(file)) == "torch.cuda.amp.GradScaler"


@pytest.mark.parametrize(
    "source",
    [
        "from mine import GradScaler\nGradScaler()",
        "class GradScaler:\n    pass\nGradScaler()",
        "def f(GradScaler):\n    GradScaler()",
        "class A:\n    from torch.cuda.amp import GradScaler\n    def f(self):\n        GradScaler()",
        "from torch.cuda.amp import GradScaler\ndef f():\n    GradScaler = other\n    GradScaler()",
    ],
)
def test_another_thing_of_that_name_is_not_torchs(parse, source):
    file = parse(source)
    assert file.names.resolve(last_function(file)) != "torch.cuda.amp.GradScaler"


def test_both_arms_of_a_guarded_import_are_known(parse):
    file = parse(
        "try:\n    from torch.amp import autocast\nexcept ImportError:\n    from torch.cuda.amp import autocast\n"
        "autocast()"
    )
    assert file.names.resolve_all(last_function(file)) == ("torch.amp.autocast", "torch.cuda.amp.autocast")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\nx = 2\nuse(x)\nx = 3", 2),
        ("x = 1\nx = use(x)", 1),
        ("if a:\n    x = 1\nelse:\n    y = use(x)\n", 2),
        ("x = 0\nif a:\n    x = 1\nelse:\n    use(x)\n", 1),
        ("for x in xs:\n    use(x)\nx = 2", 1),
        ("def f():\n    use(x)\nx = 1\nx = 2", 4),
        ("with open(p) as x:\n    use(x)", 1),
        ("a, x = f()\nuse(x)", 1),
    ],
)
def test_the_binding_in_force(parse, source, line):
    file = parse(source)
    use = next(call for call in file.tree.nodes(ast.Call) if dotted(call.func) == "use")
    assert file.names.latest(use.args[0]).position[0] == line


def test_a_tuple_is_taken_apart(parse):
    file = parse("a, (b, *c) = f(), g()\nx, y = h()\n")
    root = file.tree.root
    assert [dotted(file.names.of(root, name)[0].value.func) for name in "abcxy"] == ["f", "g", "g", "h", "h"]
    assert [file.names.of(root, name)[0].index for name in "abcxy"] == [None, 0, 1, 0, 1]


def test_globals_are_bound_in_the_module(parse):
    file = parse("def f():\n    global scaler\n    scaler = 1\n")
    assert [one.how for one in file.names.of(file.tree.root, "scaler")] == [Bound.ASSIGN]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def f(): pass\nf()", "f"),
        ("class A:\n    def f(self): pass\n    def g(self):\n        self.f()", "f"),
        ("def g():\n    def f(): pass\n    f()", "f"),
        ("f = 1\ndef f(): pass\nf()", None),
        ("other.f()", None),
    ],
)
def test_a_function_of_the_file_is_found(parse, source, name):
    file = parse(source)
    found = file.names.function(file.tree.nodes(ast.Call)[-1])
    assert (found.name if found else None) == name


def test_bases_go_through_the_files_own_classes(parse):
    file = parse("import torch\nclass A(torch.nn.Module): pass\nclass B(A, B): pass\n")
    assert list(file.names.bases(file.names.classes["B"])) == ["A", "B", "torch.nn.Module"]
