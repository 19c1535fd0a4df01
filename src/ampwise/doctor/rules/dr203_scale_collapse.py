"""DR203: the loss scale fell below 1 and still does not fit."""

from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.reruns import fails_in_fp32, fp32_run, what_removed_it
from ampwise.doctor.rule import Rule
from ampwise.doctor.scales import course, is_blameless, scaled_steps, signs_of
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.scaling_signs import SignKind

_REMEDY_FP32: Final = (
    "The same run in fp32 fails too, so precision cannot fix it: look for a division by zero in the backward pass, or "
    "lower the learning rate."
)

INFO = RuleInfo(
    id="DR203",
    name="scale-collapse",
    severity=Severity.ERROR,
    why="A loss scale below 1 makes gradients smaller than they are, which is the opposite of what it is for; torch's "
    "goes on falling. Where the loss is finite, something in the backward pass overflows at any scale.",
    remedy="Compute in bf16, which needs no scale; or run without the scaler and see what the backward pass overflows "
    "at, and keep that module in fp32 by a plan's rule.",
    evidence="torch issues 99640 and 96755: a scale far below 1 unscales finite gradients to infinity.",
    bad=(
        Example(
            title="gradients beyond fp16 at any scale",
            source="""
import torch


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1e12


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = Steep.apply(model(torch.ones(8, 8))).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """A scale below 1, or steps that are skipped at every scale, while the loss is finite."""
    steps = scaled_steps(case)
    if not steps or is_blameless(case):
        return
    lowest = min(step.scale for step in steps if step.scale is not None)
    endless = signs_of(case, SignKind.EXPLOSION)
    has_skipped = any(step.skipped for step in steps)
    if not endless and not (lowest < 1.0 and has_skipped):
        return
    what = endless[0].what if endless else f"The loss scale fell to {lowest:g}, below 1, while every loss was finite."
    fp32 = fp32_run(case)
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY if fp32 is None or fp32.has_lost_numbers else Confidence.CERTAIN,
        message=what,
        evidence="; ".join([course(case), *what_removed_it(case)]),
        remedy=_REMEDY_FP32 if fails_in_fp32(case) else INFO.remedy,
    )


RULE = Rule(info=INFO, check=check)
