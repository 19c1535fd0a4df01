"""DR206: the gradients grow a hundredfold within the steps watched."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.gradients import largest_gradients
from ampwise.doctor.reruns import fp32_run
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.run import RunRecord
from ampwise.records.scaling_signs import EXPLOSION_FACTOR

INFO = RuleInfo(
    id="DR206",
    name="gradients-explode",
    severity=Severity.WARNING,
    why="The largest gradient grew a hundredfold while the loss rose: the training diverges. In fp16 it ends in "
    "skipped steps that look like a loss scale gone wrong.",
    remedy="Lower the learning rate, lengthen its warm-up or clip the gradients' norm; no loss scale helps.",
    evidence="No healthy training shows a growth of 100 times within a thousand steps.",
    bad=(
        Example(
            title="a learning rate that is too high",
            source="""
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x = torch.rand(64, 8)
for _ in range(20):
    loss = (model(x) - 3).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Growth of the largest gradient between the first and the last sampled step, with a loss that rose."""
    sizes = largest_gradients(case)
    if len(sizes) < 2 or not sizes[0][1] > 0.0 or not _rises(case.run):
        return
    (first, small), (last, large) = sizes[0], sizes[-1]
    if large < EXPLOSION_FACTOR * small:
        return
    fp32 = fp32_run(case)
    told = [] if fp32 is None or fp32 is case.run else [f"in fp32 the loss {'rises too' if _rises(fp32) else 'falls'}"]
    losses = _losses(case.run)
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN if fp32 is not None and _rises(fp32) else Confidence.LIKELY,
        message=f"The largest gradient grew {large / small:.0f} times from step {first} to step {last}.",
        evidence="; ".join(
            [f"from {small:.3g} to {large:.3g}, the loss from {losses[0]:.4g} to {losses[-1]:.4g}", *told]
        ),
        remedy=INFO.remedy,
    )


def reassure(case: Case) -> Iterator[str]:
    """Say how the largest gradient went."""
    sizes = largest_gradients(case)
    if len(sizes) >= 2:
        yield f"the largest gradient went from {sizes[0][1]:.3g} to {sizes[-1][1]:.3g}"


def _losses(run: RunRecord) -> list[float]:
    return [step.loss for step in run.steps if step.loss is not None and step.optimizer == 0]


def _rises(run: RunRecord) -> bool:
    losses = _losses(run)
    return len(losses) >= 2 and not losses[-1] <= losses[0]


RULE = Rule(info=INFO, check=check, reassure=reassure)
