"""DR201: steps are skipped because the forward pass is not finite; the loss scale is not at fault."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.faults import faults
from ampwise.doctor.origins import place_words
from ampwise.doctor.reruns import what_removed_it
from ampwise.doctor.rule import Rule
from ampwise.doctor.scales import course, forward_is_lost, skips_often
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.run import Role

INFO = RuleInfo(
    id="DR201",
    name="not-the-scale",
    severity=Severity.WARNING,
    why="The scaler skips every step and halves the loss scale each time, but the loss is infinite or NaN before it is "
    "scaled: no scale helps, and none of the weights moves.",
    remedy="Leave the scaler as it is and put the forward pass right, as its own finding says.",
    evidence="apex issues 318, 192 and 715: `Gradient overflow. Skipping step` for ever, down to a scale of 1e-303.",
    bad=(
        Example(
            title="a forward pass beyond fp16 under a scaler",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
with torch.no_grad():
    model[0].weight.fill_(3e3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-15)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(8, 64)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Skipped steps in a row while the loss itself is not finite."""
    if not (skips_often(case) and forward_is_lost(case)):
        return
    first = next((one for one in faults(case) if one.site.op), None)
    unscaled = case.rerun(Role.UNSCALED)
    bad = unscaled.first_bad_loss if unscaled is not None else None
    shown = [course(case), *what_removed_it(case)]
    if bad is not None:
        shown.append(f"without a scale the loss is not finite from step {bad} on")
    cause = f": {place_words(first.site)} makes it so" if first is not None else ""
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN if bad is not None else Confidence.LIKELY,
        message=f"Steps are skipped because the forward pass is not finite{cause}; no loss scale helps.",
        site=first.site if first is not None else None,
        evidence="; ".join(shown),
        remedy=INFO.remedy,
    )


RULE = Rule(info=INFO, check=check)
