"""DR705: a loss scale is used with bf16."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.usage import misused
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.usage import Misuse

INFO = RuleInfo(
    id="DR705",
    name="scaler-with-bf16",
    severity=Severity.WARNING,
    why="bf16 reaches as far as fp32, so no gradient underflows in it that fp32 would hold. The scale gains "
    "nothing, costs a check of all gradients a step, and with bf16 parameters on CUDA torch's scaler raises.",
    remedy="Leave the scaler away: `GradScaler(enabled=False)` keeps the loop as it is.",
    evidence="the formats' ranges; pytorch issue 127176.",
    bad=(
        Example(
            title="bf16 with a scaler",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Lines that scaled a loss computed under bf16 autocast."""
    for place, share in misused(case, Misuse.SCALED_BF16):
        yield Finding(
            rule=INFO.id,
            severity=INFO.severity,
            message="The loss is scaled though it is computed in bf16.",
            site=place.site,
            evidence=f"{place.count} losses scaled by a {place.what}, {share}",
            remedy=INFO.remedy,
        )


RULE = Rule(info=INFO, check=check)
