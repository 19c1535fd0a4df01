"""DR702: the optimizer steps under autocast."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.usage import misused
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.usage import Misuse

INFO = RuleInfo(
    id="DR702",
    name="step-under-autocast",
    severity=Severity.WARNING,
    why="Matrix products within the optimizer's step are cast to half precision under autocast, and so are its "
    "updates (Muon, Shampoo, SOAP); an optimizer without any is only slowed.",
    remedy="End the autocast region before `optimizer.step()`.",
    evidence="torch's documentation keeps backward and the step outside of autocast; `ampwise run` switches it off "
    "around both.",
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
    """Lines that stepped an optimizer while autocast was on."""
    for place, share in misused(case, Misuse.STEP_UNDER_AUTOCAST):
        yield Finding(
            rule=INFO.id,
            severity=INFO.severity,
            message=f"{place.what} steps under autocast.",
            site=place.site,
            evidence=f"{place.count} steps, {share}",
            remedy=INFO.remedy,
        )


RULE = Rule(info=INFO, check=check)
