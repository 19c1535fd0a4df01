"""DR701: backward runs under autocast."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.usage import misused
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.usage import Misuse

INFO = RuleInfo(
    id="DR701",
    name="backward-under-autocast",
    severity=Severity.WARNING,
    why="Backward runs each operator in the dtype its forward ran in, by itself. Under autocast, operators of "
    "hooks, of custom functions and of gradient penalties are cast once more, so gradients are rounded that "
    "need not be.",
    remedy="End the autocast region before `loss.backward()`: forward and loss belong under it, nothing else.",
    evidence="torch's documentation of autocast: backward passes under autocast are not recommended.",
    bad=(
        Example(
            title="the whole step under autocast",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Lines that called backward while autocast was on."""
    for place, share in misused(case, Misuse.BACKWARD_UNDER_AUTOCAST):
        yield Finding(
            rule=INFO.id,
            severity=INFO.severity,
            message="backward runs under autocast.",
            site=place.site,
            evidence=f"{place.count} backward passes, {share}",
            remedy=INFO.remedy,
        )


def reassure(case: Case) -> Iterator[str]:
    """Say how many passes ran outside of autocast."""
    usage = case.run.usage
    if usage is not None and usage.num_backwards and case.run.left_alone is not None:
        yield f"all {usage.num_backwards} backward passes ran outside of autocast"


RULE = Rule(info=INFO, check=check, reassure=reassure)
