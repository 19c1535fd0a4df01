"""DR504: a variable keeps the autograd graph of every step."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.memory import KeptTensor, MemoryRecord
from ampwise.records.site import Phase, Site

INFO = RuleInfo(
    id="DR504",
    name="graph-kept",
    severity=Severity.ERROR,
    why="A loss that is added up, or kept in a list, brings its graph along: the nodes, and every tensor they saved. "
    "They die with the variable only, so memory grows until it is gone.",
    remedy="Keep the number, not the graph: `total += loss.detach()`, or `.item()` where the wait does not matter.",
    evidence="nodes of the variable's graph at the end of several steps, counted.",
    bad=(
        Example(
            title="a sum of losses",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
total = 0.0
for _ in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss
""",
        ),
        Example(
            title="a list of losses",
            source="""
import torch


def train(model, optimizer):
    losses = []
    for _ in range(20):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses


model = torch.nn.Linear(8, 1)
train(model, torch.optim.SGD(model.parameters(), lr=1e-3))
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Each variable whose graph grew from step to step."""
    memory = case.run.memory
    if memory is not None:
        yield from (_finding(kept, memory) for kept in memory.kept if kept.is_growing)


def reassure(case: Case) -> Iterator[str]:
    """Say that what a step leaves behind does not grow."""
    ends = case.run.memory.step_ends if case.run.memory is not None else ()
    if len(ends) > 1:
        first, last = ends[0], ends[-1]
        yield (
            f"no variable's graph grew: {format_bytes(first.live_bytes)} lived after step {first.step}, "
            f"{format_bytes(last.live_bytes)} after step {last.step}"
        )


def _finding(kept: KeptTensor, memory: MemoryRecord) -> Finding:
    name, nodes = inert_line(kept.name), ", ".join(map(str, kept.num_nodes))
    is_items = kept.name.endswith("[]")
    variable = name.removesuffix("[]")
    holder = f"The items of `{variable}` keep" if is_items else f"`{variable}` keeps"
    write = f"`{variable}.append(loss.detach())`" if is_items else f"`{variable} += loss.detach()`"
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"{holder} the autograd graph of every step.",
        site=Site(phase=Phase.OTHER, file=kept.file, line=kept.line),
        evidence=f"its graph has {nodes} nodes at the ends of steps looked at{_growth(memory)}",
        remedy=f"Keep the number, not the graph: {write}, or `.item()` where the wait does not matter.",
    )


def _growth(memory: MemoryRecord) -> str:
    if len(memory.step_ends) < 2:
        return ""
    first, last = memory.step_ends[0], memory.step_ends[-1]
    grown = last.live_bytes - first.live_bytes
    return f"; {format_bytes(grown)} more live after step {last.step} than after {first.step}" if grown > 0 else ""


RULE = Rule(info=INFO, check=check, reassure=reassure)
