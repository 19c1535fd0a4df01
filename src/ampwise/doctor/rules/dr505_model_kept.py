"""DR505: a variable left over keeps a model alive that is done with."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.memory import KeptTensor
from ampwise.records.site import Phase, Site

INFO = RuleInfo(
    id="DR505",
    name="model-kept-by-a-variable",
    severity=Severity.WARNING,
    why="A loss or an output holds its graph, and the graph holds the weights of its model. While the variable lives, "
    "a model that was deleted or replaced takes memory all the same.",
    remedy="`del` the variable, or set it to its `.item()`, before the next model is made.",
    evidence="in torch's own AMP recipe the fp32 run's `loss` keeps its model alive in the mixed run: 1,577,232,384 "
    "bytes were published, and rebuilt to the byte.",
    bad=(
        Example(
            title="a loss of the model before",
            source="""
import torch


def step(model, optimizer):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


first = torch.nn.Linear(8, 1)
old_loss = first(torch.ones(4, 8)).sum()
del first
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    step(model, optimizer)
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Variables whose graph is of a model that is no more."""
    memory = case.run.memory
    if memory is not None:
        yield from (_finding(kept) for kept in memory.kept if kept.is_of_other_model and not kept.is_growing)


def _finding(kept: KeptTensor) -> Finding:
    name = inert_line(kept.name)
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY,
        message=f"`{name.removesuffix('[]')}` keeps the weights of a model alive that is gone.",
        site=Site(phase=Phase.OTHER, file=kept.file, line=kept.line),
        evidence=f"its graph of {kept.num_nodes[-1]} nodes holds {format_bytes(kept.leaf_bytes)} of parameters, and "
        "no module or optimizer that there still is has them",
        remedy=f"`del {name.removesuffix('[]')}` once it is done with, or keep its `.item()` or `.detach()` instead.",
    )


RULE = Rule(info=INFO, check=check)
