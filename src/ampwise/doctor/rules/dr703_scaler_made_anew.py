"""DR703: a gradient scaler is made anew in the loop."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR703",
    name="scaler-made-anew",
    severity=Severity.ERROR,
    why="A scaler learns its scale over thousands of steps. One that is made anew starts at 65536 again: it skips "
    "the same steps again, and never grows.",
    remedy="Make the scaler once, before the loop.",
    evidence="the scaler's state: a scale and a growth counter, both lost.",
    bad=(
        Example(
            title="a scaler a step",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", dtype=torch.float16):
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
    """Lines that made several scalers after the first step."""
    usage = case.run.usage
    for made in usage.scalers if usage is not None else ():
        if made.num_in_loop > 1 and usage is not None:
            every = made.count >= usage.num_steps
            yield Finding(
                rule=INFO.id,
                severity=INFO.severity if every else Severity.WARNING,
                message=f"A {made.kind} is made anew {'at every step' if every else 'in the loop'}.",
                site=made.site,
                evidence=f"{made.count} scalers made at this line in {usage.num_steps} steps",
                remedy=INFO.remedy,
            )


RULE = Rule(info=INFO, check=check)
