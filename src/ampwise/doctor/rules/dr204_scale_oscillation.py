"""DR204: the loss scale saws between values and skips steps each time."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.scales import course, forward_is_lost, signs_of
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.scaling_signs import SignKind

INFO = RuleInfo(
    id="DR204",
    name="scale-oscillation",
    severity=Severity.WARNING,
    why="The loss scale grows and falls back time and again: the growth interval is so short that every growth ends in "
    "a skipped step.",
    remedy="Lengthen growth_interval, or set max_scale below the scale that overflows.",
    evidence="A settled scale turns once in every growth interval, 2000 steps in torch.",
    bad=(
        Example(
            title="a growth interval of one step",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1)
for _ in range(40):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(8, 8)).sum() * 100
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """The sign of oscillation in the scale's history."""
    if forward_is_lost(case):
        return
    for sign in signs_of(case, SignKind.OSCILLATION):
        yield Finding(
            rule=INFO.id,
            severity=INFO.severity,
            confidence=Confidence.CERTAIN,
            message=sign.what,
            evidence=f"steps {sign.first_step} to {sign.last_step}; {course(case)}",
            remedy=sign.remedy,
        )


RULE = Rule(info=INFO, check=check)
