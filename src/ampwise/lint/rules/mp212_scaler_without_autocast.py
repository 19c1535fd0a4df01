"""MP212: a loss is scaled though nothing runs in half precision."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

_LOOP: Final = """
import torch
from torch import nn

def train(optimizer, loader, criterion):
    model = nn.Linear(8, 8).cuda()
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
"""
_STEP: Final = """
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

INFO = RuleInfo(
    id="MP212",
    name="scaler-without-autocast",
    severity=Severity.INFO,
    why="GradScaler protects float16 gradients from underflow. Without autocast everything is computed in float32: the "
    "scaler costs a check of all gradients each step and gains nothing.",
    remedy="Run the forward pass and the loss under torch.autocast, or leave the scaler out.",
    evidence="PyTorch's AMP examples: autocast and GradScaler are made to be used together.",
    bad=(
        Example(
            source=_LOOP
            + """
        loss = criterion(model(x), y)
"""
            + _STEP,
        ),
    ),
    good=(
        Example(
            source=_LOOP
            + """
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
"""
            + _STEP,
        ),
        Example(
            title="the model may hold the autocast",
            source="""
import torch
from models import build

def train(optimizer, loader, criterion):
    model = build()
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
"""
            + _STEP,
        ),
        Example(
            title="float16 by hand",
            source=_LOOP
            + """
        loss = criterion(model(x.half()), y)
"""
            + _STEP,
        ),
    ),
)

_HALF: Final = re.compile(r"auto_?cast|\.half\(|float16|fp16|torch\.half|mixed_precision", re.IGNORECASE)


def check(file: SourceFile) -> Iterator[Finding]:
    """The first scaled backward of a file that runs a model made of torch's own parts and never casts."""
    events = file.flow.events
    scaled = next((event for event in events if event.act is Act.BACKWARD and event.is_scaled), None)
    forwards = [event.node for event in events if event.act is Act.FORWARD]
    if scaled is None or not forwards or _HALF.search(file.text.text):
        return
    if not all(_is_known(file, node) for node in forwards):
        return
    yield file.finding(INFO, scaled.node, f"{scaled.scaler} scales a loss that is computed in float32: no autocast")


def _is_known(file: SourceFile, node: ast.expr) -> bool:
    """Whether the model called is made of classes of torch or of this file."""
    origin = file.kinds.of(node.func).origin if isinstance(node, ast.Call) else None
    return origin is not None and (origin.startswith(("torch.", "torchvision.")) or origin in file.names.classes)


RULE = Rule(info=INFO, check=check, words=(".scale(",), off_under=ALL_FRAMEWORKS)
