"""DR506: autocast's cache holds casts of the weights longer than a step."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.units import format_bytes
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.memory import StepEnd

_LEAST_BYTES: Final = 256 * 2**10

INFO = RuleInfo(
    id="DR506",
    name="cast-cache-kept",
    severity=Severity.WARNING,
    why="autocast keeps each weight's cast until its outermost region ends. In a region around several steps "
    "the casts stay, and after an update the cached cast is of the old weight.",
    remedy="Enter autocast in each step, around the forward pass alone: "
    '`with torch.autocast("cuda"): loss = criterion(model(x), y)`.',
    evidence="casts of parameters that live when a step has ended; pytorch issues 48049 and 45910: ten times the "
    "memory in a region around generate().",
    bad=(
        Example(
            title="one region around an epoch",
            source="""
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for epoch in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(5):
            loss = model(torch.randn(8, 512)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Casts that neither a graph nor a variable accounts for at a step's end."""
    ends = case.run.memory.step_ends if case.run.memory is not None else ()
    worst = max(ends, key=lambda end: end.cached_cast_bytes, default=None)
    if worst is None or worst.cached_cast_bytes < _LEAST_BYTES:
        return
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY,
        message=f"autocast's cache still holds {format_bytes(worst.cached_cast_bytes)} of casts when a step has ended.",
        evidence=f"{_figures(worst)}; casts of parameters that no variable holds",
        remedy=INFO.remedy,
    )


def _figures(end: StepEnd) -> str:
    return f"after step {end.step}: {format_bytes(end.cached_cast_bytes)} of {format_bytes(end.live_bytes)} live"


RULE = Rule(info=INFO, check=check)
