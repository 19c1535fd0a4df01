"""DR704: gradients are clipped while the loss scale is still in them."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.usage import misused
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.usage import Misuse

INFO = RuleInfo(
    id="DR704",
    name="clipped-before-unscale",
    severity=Severity.ERROR,
    why="Between `scaler.scale(loss).backward()` and `scaler.unscale_` gradients are as many times too large as "
    "the loss scale. A norm clipped to 1 then is 1/65536 after unscaling: the model all but stands still.",
    remedy="Call `scaler.unscale_(optimizer)` before the clipping.",
    evidence="torch's examples of mixed precision; Lightning issue 9330 and others: a silently worse loss.",
    bad=(
        Example(
            title="no unscale_",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Lines that clipped scaled gradients which the scaler then stepped with."""
    for place, share in misused(case, Misuse.CLIPPED_SCALED):
        yield Finding(
            rule=INFO.id,
            severity=INFO.severity,
            message=f"{place.what} clips gradients that are {place.scale or 1:g} times too large.",
            site=place.site,
            evidence=f"{place.count} times, {share}, at a loss scale of {place.scale or 1:g}; no unscale_ before",
            remedy=INFO.remedy,
        )


def reassure(case: Case) -> Iterator[str]:
    """Say that a scaler was used in its order."""
    usage = case.run.usage
    if usage is not None and usage.has_scaler and not usage.misuses:
        yield f"the gradient scaler was used in its order in {usage.num_scaled} scaled losses"


RULE = Rule(info=INFO, check=check, reassure=reassure)
