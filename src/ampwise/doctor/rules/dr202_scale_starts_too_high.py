"""DR202: the loss scale is so high that many steps are skipped before it fits."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.reruns import what_removed_it
from ampwise.doctor.rule import Rule
from ampwise.doctor.scales import course, is_blameless, scaled_steps, skips_often
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR202",
    name="scale-too-high",
    severity=Severity.INFO,
    why="The loss is finite, but its gradients times the loss scale leave fp16, so steps are skipped until the scale "
    "has come down. That costs those steps, and a scheduler that counts them runs ahead.",
    remedy="Start lower: `GradScaler(init_scale=...)`.",
    evidence="torch's scale starts at 65536 and halves at each skipped step.",
    bad=(
        Example(
            title="gradients of a thousand",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(8, 8)).sum() * 1000
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Skipped steps in a row with a finite loss, until a scale fitted or the run ended."""
    steps = scaled_steps(case)
    if not skips_often(case) or is_blameless(case):
        return
    if any(step.scale is not None and step.scale < 1.0 for step in steps):
        return  # a collapse is DR203's
    fitting = next((step.scale for step in steps if not step.skipped and step.index > _last_skip(case)), None)
    settled = f"{fitting:g} fits" if fitting is not None else "none had fitted when the run ended"
    lower = f"`GradScaler(init_scale={fitting:g})`" if fitting is not None else INFO.remedy
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity if fitting is not None else Severity.WARNING,
        confidence=Confidence.CERTAIN if fitting is not None else Confidence.LIKELY,
        message=f"Steps are skipped because a loss scale of {steps[0].scale:g} takes the gradients beyond fp16; "
        f"{settled}.",
        evidence="; ".join([f"every loss is finite; {course(case)}", *what_removed_it(case)]),
        remedy=f"Start lower: {lower}." if fitting is not None else f"{lower} Or run longer: --steps 100.",
    )


def reassure(case: Case) -> Iterator[str]:
    """Say how many steps a scale cost."""
    steps = scaled_steps(case)
    if steps and not skips_often(case):
        yield f"the loss scale cost {case.run.num_skipped} of {len(steps)} steps and is {steps[-1].scale:g}"


def _last_skip(case: Case) -> int:
    return max((step.index for step in case.steps if step.skipped), default=-1)


RULE = Rule(info=INFO, check=check, reassure=reassure)
