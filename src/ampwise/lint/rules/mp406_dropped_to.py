"""MP406: a tensor is moved or cast, and the result thrown away."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.names import Bound
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.torch_names import MODULE_WORD
from ampwise.records.finding import Example, Finding, Fixable, RuleInfo, Severity

INFO = RuleInfo(
    id="MP406",
    name="dropped-to",
    severity=Severity.ERROR,
    why="to(), cuda(), half() and float() of a tensor return a new tensor and leave the old one as it is; only modules "
    "change in place. The statement does nothing but copy.",
    remedy="Assign the result: x = x.to(device).",
    evidence="PyTorch's Tensor.to reference: 'the returned tensor is a copy'.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source="""
import torch
from torch.utils.data import DataLoader

def run(model, data, device):
    loader = DataLoader(data)
    for x, y in loader:
        x.to(device)
        print(model(x))
""",
            fixed="""
import torch
from torch.utils.data import DataLoader

def run(model, data, device):
    loader = DataLoader(data)
    for x, y in loader:
        x = x.to(device)
        print(model(x))
""",
        ),
        Example(
            title="a cast",
            source="""
import torch

def make():
    mask = torch.ones(4)
    mask.half()
    return mask
""",
            fixed="""
import torch

def make():
    mask = torch.ones(4)
    mask = mask.half()
    return mask
""",
        ),
    ),
    good=(
        Example(
            title="modules change in place",
            source="""
from torch import nn

import factory

def make(net, device):
    factory.load_net().cuda()
    part = factory.get_model()
    part.cuda()
    other = factory.model_registry["base"](8)
    other.to(device)
    model = nn.Linear(8, 8)
    model.to(device)
    net.cuda()
    model.half()
    criterion = nn.CrossEntropyLoss()
    criterion.cuda()
    return model
""",
        ),
        Example(
            title="an object of some other class",
            source="""
from torch.utils.data import DataLoader

def run(batches, data, device):
    for batch in DataLoader(data):
        batch.to(device)
    for sample in batches:
        sample.to(device)
""",
        ),
        Example(
            title="a copy made to warm up or to be timed",
            source="""
import torch

def warm_up(device):
    torch.ones(1).to(device)
""",
        ),
        Example(
            title="used",
            source="""
import torch

def make(device):
    x = torch.ones(4)
    x = x.to(device)
    return x.half()
""",
        ),
    ),
)

_METHODS: Final = frozenset({"to", "cuda", "cpu", "half", "float", "double", "bfloat16"})


def check(file: SourceFile) -> Iterator[Finding]:
    """Every statement that is such a call on a name that holds a tensor."""
    for statement in file.tree.nodes(ast.Expr):
        match statement.value:
            case ast.Call(func=ast.Attribute(attr=attr, value=ast.Name() as tensor)) if attr in _METHODS:
                if _is_tensor(file, tensor):
                    text = file.text.segment(statement)
                    edit = fix(file.edit.replace(statement, f"{tensor.id} = {text}"), safe=False)
                    message = f"{ast.unparse(statement.value)} returns a new tensor, and {tensor.id} stays as it is"
                    yield file.finding(INFO, statement, message, fix=edit)
            case _:
                continue


def _is_tensor(file: SourceFile, name: ast.Name) -> bool:
    """Whether the name was seen getting a tensor: a loader's whole batch may be of a class that moves in place."""
    bound = file.names.latest(name)
    if MODULE_WORD.fullmatch(name.id) or bound is None or bound.how not in {Bound.ASSIGN, Bound.LOOP}:
        return False
    if bound.how is Bound.LOOP and not (isinstance(bound.node, ast.For) and isinstance(bound.node.target, ast.Tuple)):
        return False
    if bound.how is Bound.LOOP and isinstance(bound.value, ast.Call) and _is_whole_batch(bound.node, name.id):
        return False
    surely = Confidence.USE if bound.how is Bound.LOOP else Confidence.MADE
    return file.kinds.is_a(name, Kind.TENSOR, at_least=surely)


def _is_whole_batch(loop: ast.AST, name: str) -> bool:
    """Whether a loop over ``enumerate(loader)`` gives ``name`` the whole batch."""
    target = loop.target if isinstance(loop, ast.For) else None
    return isinstance(target, ast.Tuple) and any(
        isinstance(one, ast.Name) and one.id == name for one in target.elts[1:]
    )


RULE = Rule(info=INFO, check=check, words=("torch",))
