"""DR411: torch.compile could not keep a function in one graph."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.compilation import CompileRecord, GraphBreak
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.site import Phase, Site

_MANY_GRAPHS: Final = 8
"""torch's limit of recompilations of one function; beyond it the function is left to Python."""

INFO = RuleInfo(
    id="DR411",
    name="graph-broken",
    severity=Severity.WARNING,
    why="At a line that the compiler cannot follow it ends the graph, runs the line in Python, and begins another. "
    "Operators on both sides cannot be put into one kernel, and the autocast region is entered anew.",
    remedy="Take the line out of the compiled function. `torch.compile(model, fullgraph=True)` raises at every break, "
    "`TORCH_LOGS=graph_breaks,recompiles` lists them.",
    evidence="the compiler's own accounts: graphs, breaks with their reason and line.",
    bad=(
        Example(
            title="a number read inside the compiled function",
            source="""
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        x = self.first(x)
        if x.sum() > 0:
            x = x.relu()
        return self.last(x)


model = Net()
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = compiled(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Each line at which graphs broke; else many graphs of few functions."""
    seen = case.run.compilation
    if seen is None:
        return
    for one in seen.breaks:
        yield _finding(
            f"torch.compile breaks its graph here: {_words(one)}",
            f"{one.count} break{'s' * (one.count != 1)} at this line; {_figures(seen)}",
            site=_site(one),
        )
    if not seen.breaks and seen.num_graphs >= _MANY_GRAPHS * max(seen.num_frames, 1):
        yield _finding("torch.compile compiles the same functions over and over.", _figures(seen), remedy=_RECOMPILES)


def reassure(case: Case) -> Iterator[str]:
    """Say how many graphs there are."""
    seen = case.run.compilation
    if seen is not None:
        yield f"torch.compile broke no graph: {_figures(seen)}"


_RECOMPILES: Final = (
    "Give it the same shapes each step (`drop_last=True`, padded batches), or `torch.compile(model, dynamic=True)`; "
    "`TORCH_LOGS=recompiles` says what changed."
)


def _finding(message: str, evidence: str, *, site: Site | None = None, remedy: str = INFO.remedy) -> Finding:
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=message,
        site=site,
        evidence=evidence,
        remedy=remedy,
    )


def _words(one: GraphBreak) -> str:
    if one.reason.startswith("generic_jump"):
        return "a branch depends on a tensor's numbers."
    return inert_line(one.reason, max_length=160)


def _site(one: GraphBreak) -> Site | None:
    return None if one.file is None else Site(phase=Phase.OTHER, file=one.file, line=one.line)


def _figures(seen: CompileRecord) -> str:
    left = f", {seen.num_left} left to Python" if seen.num_left else ""
    return f"{seen.num_graphs} graphs of {seen.num_frames} functions{left}"


RULE = Rule(info=INFO, check=check, reassure=reassure)
