"""DR205: gradients become zero in fp16."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.gradients import Smallness, smallness
from ampwise.doctor.rule import Rule
from ampwise.doctor.scales import forward_is_lost
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.scaling_signs import SUBNORMAL_SHARE
from ampwise.records.site import Phase, Site

_SCALE: Final = (
    "Multiply the loss by a scale: `scaler = GradScaler()` and `scaler.scale(loss).backward()`; `ampwise run "
    "--precision fp16` does it by itself. Or compute in bf16, which reaches as far down as fp32."
)

INFO = RuleInfo(
    id="DR205",
    name="gradient-underflow",
    severity=Severity.WARNING,
    why="fp16 has nothing between 0 and 6e-8, and fewer digits below 6e-5. Gradients that small become zero or lose "
    "digits, and what depends on them does not learn.",
    remedy=_SCALE,
    evidence="Micikevicius et al. 2018: without a loss scale most gradients of a detector were zero in fp16; rebuilt "
    "as a test in which all are.",
    bad=(
        Example(
            title="a small loss without a scale",
            source="""
import torch

model = torch.nn.Linear(8, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.rand(4096, 8).half()
for _ in range(20):
    loss = model(x).float().square().mean() * 1e-4
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Gradients that were all zero, or of which a quarter lay below fp16's normal numbers, at the scale they had."""
    found = smallness(case)
    losses = [step.loss for step in case.steps if step.loss is not None]
    if found is None or forward_is_lost(case) or not any(losses):
        return
    if found.is_all_zero:
        yield _finding(
            case, found, f"All {found.num_zeros} gradients looked at are zero in fp16, while the loss is not."
        )
    elif found.subnormal_share >= SUBNORMAL_SHARE:
        worst, share = found.worst
        yield _finding(
            case,
            found,
            f"{found.subnormal_share:.0%} of the gradients that are not zero lie below fp16's normal numbers; the "
            f"most, {share:.0%}, in {inert_line(worst) or 'the model'}.",
        )


def reassure(case: Case) -> Iterator[str]:
    """Say how few gradients are too small."""
    found = smallness(case)
    if found is not None and found.num_nonzero:
        yield (
            f"{found.subnormal_share:.1%} of the gradients lie below fp16's normal numbers "
            f"({found.num_nonzero} numbers looked at)"
        )


def _finding(case: Case, found: Smallness, message: str) -> Finding:
    scale = case.run.final_scale
    scaled = "without a loss scale" if scale is None else f"at a loss scale of {scale:g}"
    total = found.num_zeros + found.num_nonzero
    return Finding(
        rule=INFO.id,
        severity=Severity.ERROR if found.is_all_zero else INFO.severity,
        confidence=Confidence.LIKELY,
        message=message,
        site=Site(phase=Phase.BACKWARD, module=found.worst[0]),
        evidence=f"{scaled}, {found.num_zeros} of {total} numbers are zero and {found.num_subnormal} below 6.1e-05, "
        f"in {found.num_tensors} tensors",
        remedy=_SCALE if scale is None else f"Raise the scale: `GradScaler(init_scale={scale * 256:g})`; or use bf16.",
    )


RULE = Rule(info=INFO, check=check, reassure=reassure)
