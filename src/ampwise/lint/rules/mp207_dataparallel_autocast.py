"""MP207: a DataParallel model runs under bfloat16 autocast, and its replicas in float16."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.lint.tree import dotted
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="MP207",
    name="dataparallel-autocast",
    severity=Severity.ERROR,
    why="nn.DataParallel runs its replicas in threads of their own, and autocast's dtype is thread-local. "
    "parallel_apply enters autocast anew, but without the dtype: under a bfloat16 region the replicas compute in "
    "float16, whose range is far smaller, and no loss scale protects them.",
    remedy="Use DistributedDataParallel, or enter autocast within the model's forward.",
    evidence="torch/nn/parallel/parallel_apply.py of torch 2.13: torch.amp.autocast(device_type, "
    "enabled=autocast_enabled); measured that the dtype is thread-local.",
    bad=(
        Example(
            source="""
import torch
from torch import nn

def train(net, optimizer, loader):
    model = nn.DataParallel(net)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x, y).mean()
        loss.backward()
        optimizer.step()
""",
        ),
    ),
    good=(
        Example(
            title="float16 is what the replicas get",
            source="""
import torch
from torch import nn

def forward(net, x):
    model = nn.DataParallel(net)
    with torch.autocast("cuda", dtype=torch.float16):
        return model(x)
""",
        ),
        Example(
            title="one process for each GPU",
            source="""
import torch
from torch.nn.parallel import DistributedDataParallel

def forward(net, x):
    model = DistributedDataParallel(net)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(x)
""",
        ),
        Example(
            title="the wrapped module, called past its wrapper",
            source="""
import torch
from torch import nn

def forward(net, x):
    model = nn.DataParallel(net)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model.module(x)
""",
        ),
    ),
)

_DATA_PARALLEL: Final = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})


def check(file: SourceFile) -> Iterator[Finding]:
    """Every call of a wrapped model in a region whose dtype is bfloat16 in so many words."""
    wrapped = _wrapped(file)
    for event in file.flow.events if wrapped else ():
        call = event.node
        if event.act is not Act.FORWARD or not isinstance(call, ast.Call) or dotted(call.func) not in wrapped:
            continue
        region = file.regions.autocast(call)
        if region is not None and region.dtype == "torch.bfloat16":
            name = ast.unparse(call.func)
            yield file.finding(INFO, call, f"the replicas of {name} run in float16: DataParallel drops bfloat16")


def _wrapped(file: SourceFile) -> set[str]:
    """The names that a DataParallel is bound to."""
    found: set[str] = set()
    for node in file.tree.nodes(ast.Assign):
        for call in file.tree.inside(node.value, ast.Call):
            if file.names.resolve(call.func) in _DATA_PARALLEL:
                found |= {name for target in node.targets if (name := dotted(target)) is not None}
    return found


RULE = Rule(info=INFO, check=check, words=("DataParallel",))
