"""DR306: the loss goes another way than in fp32."""

import math
from collections.abc import Iterator
from statistics import fmean, pstdev
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.reruns import fp32_run
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.run import RunRecord

_LEAST_STEPS: Final = 8
_SHARE: Final = 0.2
"""Of fp32's loss: half precision changes the loss of twenty steps by a percent or so."""
_NOISES: Final = 4.0

INFO = RuleInfo(
    id="DR306",
    name="loss-drifts",
    severity=Severity.WARNING,
    why="The same training from the same seeds ends with another loss than in fp32: by more than a fifth, and by more "
    "than the loss moves from step to step. Nothing was infinite; the numbers were not good enough.",
    remedy="Look at the other findings first: module errors, lost updates, underflow. Then compare longer runs with "
    "several seeds: `ampwise compare --steps 200 train.py`.",
    evidence="The mean loss of the last quarter of the steps, in both precisions.",
    bad=(
        Example(
            title="an output that bf16 rounds by more than it is off",
            source="""
import torch

torch.manual_seed(0)
model = torch.nn.Linear(16, 1, bias=False)
with torch.no_grad():
    model.weight.fill_(8.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.rand(64, 16)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (model(x).float() - x.sum(1, keepdim=True) * 7.99).square().mean() * 100
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """The mean loss of the last quarter beside fp32's."""
    ends = _ends(case)
    if ends is None:
        return
    low, high, noise = ends
    distance = abs(low - high)
    if distance < _SHARE * abs(high) or distance < _NOISES * noise:
        return
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.POSSIBLE,
        message=f"The loss ends at {low:.4g} in {case.run.precision} and at {high:.4g} in fp32, from the same seeds.",
        evidence=f"means of the last quarter of {len(case.steps)} steps; fp32's loss moves by {noise:.2g} within it",
        remedy=INFO.remedy,
    )


def reassure(case: Case) -> Iterator[str]:
    """Say how close the two are."""
    ends = _ends(case)
    if ends is not None and not case.run.has_lost_numbers:
        yield f"the loss ends at {ends[0]:.4g}, and at {ends[1]:.4g} in fp32"


def _ends(case: Case) -> tuple[float, float, float] | None:
    """The mean loss at the end, fp32's, and how much fp32's moves there."""
    fp32 = fp32_run(case)
    if fp32 is None or fp32 is case.run:
        return None
    low, high = _losses(case.run), _losses(fp32)
    num = min(len(low), len(high))
    quarter = slice(num - max(num // 4, 2), num)
    if num < _LEAST_STEPS or not all(map(math.isfinite, (*low[quarter], *high[quarter]))):
        return None
    return fmean(low[quarter]), fmean(high[quarter]), pstdev(high[quarter])


def _losses(run: RunRecord) -> list[float]:
    return [step.loss for step in run.steps if step.loss is not None and step.optimizer == 0]


RULE = Rule(info=INFO, check=check, reassure=reassure)
