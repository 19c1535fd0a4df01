"""DR111: a buffer of the model became infinite or NaN."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.reruns import seen_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.site import Phase, Site

_MAX_NAMED: Final = 3

INFO = RuleInfo(
    id="DR111",
    name="spoilt-buffer",
    severity=Severity.WARNING,
    why="A buffer that was finite when training began holds infinities or NaN. Loss and gradients may stay finite all "
    "the same: what is divided by infinity is zero, so part of the model says nothing any more. The buffer is saved "
    "with the model, and no skipped step takes it back.",
    remedy="Look at what writes it: bound the number that it counts or multiplies up, and write nothing to it in a "
    "step whose values are not finite.",
    evidence="The buffers of every model are looked at before its first call and at the end of the run. BatchNorm's "
    "running statistics are DR107's.",
    bad=(
        Example(
            title="a scale that is multiplied up in every step",
            source="""
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        with torch.no_grad():
            self.scale.mul_(1e4)
        return self.head(self.body(x) / self.scale)

model = Scaled()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Buffers but running statistics that were finite at the start and are not at the end."""
    seen = case.run.nonfinite
    if seen is None:
        return
    spoilt = [one for one in seen.buffers if one not in seen.buffers_before and "running_" not in one]
    if not spoilt:
        return
    names = ", ".join(inert_line(one) for one in spoilt[:_MAX_NAMED])
    more = f" and {len(spoilt) - _MAX_NAMED} more" if len(spoilt) > _MAX_NAMED else ""
    hold = "holds" if len(spoilt) == 1 else "hold"
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"The buffer{'s' * (len(spoilt) > 1)} {names}{more} {hold} infinities or NaN, and did not at first.",
        site=Site(phase=Phase.FORWARD, module=spoilt[0].rpartition(".")[0]),
        evidence=f"finite before the first step, not after step {seen.num_steps - 1}{_in_fp32(case, spoilt)}",
        remedy=INFO.remedy,
    )


def _in_fp32(case: Case, spoilt: list[str]) -> str:
    seen = seen_in_fp32(case)
    if seen is None:
        return ""
    return "; in fp32 too" if set(spoilt) <= set(seen.buffers) else "; in fp32 they stay finite"


RULE = Rule(info=INFO, check=check)
