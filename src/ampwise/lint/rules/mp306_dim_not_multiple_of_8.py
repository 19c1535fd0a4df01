"""MP306: a layer has a size that tensor cores cannot use fully."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.names import Bound
from ampwise.lint.regions import argument
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="MP306",
    name="dim-not-multiple-of-8",
    severity=Severity.INFO,
    why="Tensor cores multiply tiles whose sides are multiples of 8 in half precision. A size beside one is padded in "
    "each product or handed to a slower kernel.",
    remedy="Round the size up to a multiple of 8, better of 64: a vocabulary of 50257 to 50304.",
    evidence="NVIDIA's Deep Learning Performance guide, 'Tensor Core requirements'; nanoGPT pads its vocabulary of "
    "50257 to 50304 for speed.",
    bad=(
        Example(
            source="""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50257, 768)
        self.hidden = nn.Linear(768, 770)

    def forward(self, x):
        with torch.autocast("cuda"):
            return self.hidden(self.tokens(x))
""",
            num_findings=2,
        ),
        Example(
            title="through a constant",
            source="""
import torch
from torch import nn

VOCABULARY = 50257

def make():
    return nn.Embedding(VOCABULARY, 768).to(torch.bfloat16)
""",
        ),
    ),
    good=(
        Example(
            source="""
import torch
from torch import nn

def make():
    return nn.Embedding(50304, 768).to(torch.bfloat16)
""",
        ),
        Example(
            title="channels of an image, classes, small sizes",
            source="""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7)
        self.small = nn.Linear(64, 10)
        self.head = nn.Linear(64, 365)

    def forward(self, x):
        with torch.autocast("cuda"):
            return self.head(self.stem(x))
""",
        ),
        Example(
            title="nothing in half precision",
            source="""
from torch import nn

def make():
    return nn.Embedding(50257, 770)
""",
        ),
        Example(
            title="a size only known when it runs",
            source="""
import torch
from torch import nn

def make(n):
    return nn.Embedding(n, 768).to(torch.bfloat16)
""",
        ),
    ),
)

_SIZES: Final = {
    "torch.nn.Linear": ("in_features", "out_features"),
    "torch.nn.Embedding": ("num_embeddings", "embedding_dim"),
    "torch.nn.Conv1d": ("in_channels", "out_channels"),
    "torch.nn.Conv2d": ("in_channels", "out_channels"),
}
_MIN: Final = 64
_HEAD_MIN: Final = 1024
"""The outputs of a last layer are given by the task; padding them pays only for a large vocabulary."""
_HEADS: Final = ("head", "fc", "classifier", "out", "proj_out", "linear", "cls", "last")


def check(file: SourceFile) -> Iterator[Finding]:
    """Every literal size of a layer that is large and no multiple of 8."""
    for call in file.tree.nodes(ast.Call):
        sizes = _SIZES.get(file.names.resolve(call.func) or "")
        for index, name in enumerate(sizes or ()):
            given = argument(call, name, index)
            size = _integer(file, given)
            if given is not None and size is not None and size % 8 and size >= _least(file, call, name):
                better = (size + 63) // 64 * 64
                message = f"{name} of {size} is no multiple of 8: {better} is, and of 64"
                yield file.finding(INFO, given, message, group="layer sizes")


def _least(file: SourceFile, call: ast.Call, name: str) -> int:
    """The size from which padding pays."""
    if name != "out_features":
        return _MIN
    statement = file.tree.statement(call)
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    return _HEAD_MIN if not target or any(word in target.lower() for word in _HEADS) else _MIN


def _integer(file: SourceFile, expression: ast.expr | None) -> int | None:
    """The value of a literal, or of a name that is bound to one and nothing else."""
    if isinstance(expression, ast.Name):
        found = file.names.lookup(expression)
        is_fixed = len(found) == 1 and found[0].how is Bound.ASSIGN and found[0].index is None
        expression = found[0].value if is_fixed else None
    value = expression.value if isinstance(expression, ast.Constant) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


RULE = Rule(info=INFO, check=check, words=("autocast", "float16", "bfloat16", ".half()", "GradScaler"))
