"""DR707: the optimizer steps with scaled gradients."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.usage import misused
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.usage import Misuse

INFO = RuleInfo(
    id="DR707",
    name="step-past-the-scaler",
    severity=Severity.ERROR,
    why="The loss was scaled and the optimizer stepped by itself, so its gradients are as many times too large as "
    "the scale. SGD diverges at once; Adam hides it, but for weight decay and epsilon.",
    remedy="Write `scaler.step(optimizer)` and `scaler.update()` in place of `optimizer.step()`.",
    evidence="seen by following the scaler's calls; reported only where no scaler stepped any optimizer.",
    bad=(
        Example(
            title="scaler.step left out",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    scaler.scale(loss).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Lines that stepped an optimizer whose gradients held the scale."""
    for place, share in misused(case, Misuse.STEPPED_SCALED):
        yield Finding(
            rule=INFO.id,
            severity=INFO.severity,
            message=f"{place.what} steps with gradients that still hold the loss scale.",
            site=place.site,
            evidence=f"{place.count} steps past the scaler, {share}",
            remedy=INFO.remedy,
        )


RULE = Rule(info=INFO, check=check)
