"""MP209: the script trains with apex.amp, which torch.amp has replaced."""

import ast
from collections.abc import Iterator

from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="MP209",
    name="apex-amp",
    severity=Severity.INFO,
    why="apex.amp is deprecated and no longer maintained. It replaces torch's functions when it starts, must be built "
    "for each release of torch and CUDA, and knows no bfloat16.",
    remedy="Use torch.autocast around the forward pass, and torch.amp.GradScaler.",
    evidence="apex's README: 'Deprecated. Use PyTorch AMP'.",
    bad=(
        Example(
            source="""
from apex import amp

def train(model, optimizer, loader):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x, y in loader:
        optimizer.zero_grad()
        loss = model(x, y)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
""",
            num_findings=2,
        ),
    ),
    good=(
        Example(
            title="an import that nothing uses",
            source="""
try:
    from apex import amp
except ImportError:
    amp = None
""",
        ),
        Example(
            title="apex's optimizers",
            source="""
from apex.optimizers import FusedAdam

def make(model):
    return FusedAdam(model.parameters())
""",
        ),
        Example(
            title="torch's amp",
            source="""
from torch import amp

scaler = amp.GradScaler("cuda")
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every call of a function of apex.amp."""
    for call in file.tree.nodes(ast.Call):
        for name in file.names.resolve_all(call.func):
            if name.startswith("apex.amp."):
                yield file.finding(INFO, call, f"{name}() is deprecated: torch.amp does the same", group="apex.amp")
                break


RULE = Rule(info=INFO, check=check, words=("apex",))
