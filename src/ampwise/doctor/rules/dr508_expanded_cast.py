"""DR508: the cast of an expanded tensor writes every repetition out."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.units import format_bytes
from ampwise.doctor.case import Case
from ampwise.doctor.origins import place_words
from ampwise.doctor.rule import Rule
from ampwise.records.casts import CastPlace
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity

_LEAST_BYTES: Final = 2**20

INFO = RuleInfo(
    id="DR508",
    name="expanded-cast",
    severity=Severity.WARNING,
    why="`expand` repeats numbers without storing them. A cast makes a new tensor, and in that every repetition takes "
    "memory: mixed precision then takes many times what fp32 does.",
    remedy="Cast before expanding: `x.to(torch.bfloat16).expand(...)`, or broadcast instead of expanding.",
    evidence="pytorch issue 85698: bmm of an expanded operand takes 5,508,148,224 bytes under autocast and 180,702,208 "
    "without, both rebuilt to the byte.",
    bad=(
        Example(
            title="one matrix expanded to a batch",
            source="""
import torch

weight = torch.nn.Parameter(torch.randn(128, 128) / 10)
model = torch.nn.Linear(128, 128)
optimizer = torch.optim.SGD([weight, *model.parameters()], lr=1e-3)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = model(torch.randn(64, 4, 128))
        loss = torch.bmm(x, weight.expand(64, 128, 128)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Places whose casts write at least a MiB a step more than the tensor held."""
    casts = case.run.casts
    if casts is None or not casts.steps:
        return
    for cast in casts.casts:
        if cast.expanded_bytes / len(casts.steps) >= _LEAST_BYTES:
            yield _finding(cast, len(casts.steps))


def _finding(cast: CastPlace, num_steps: int) -> Finding:
    extra = format_bytes(cast.expanded_bytes / num_steps)
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"The cast to {cast.target} for {cast.reason or 'an operator'} at {place_words(cast.site)} writes out "
        f"an expanded tensor: {extra} more a step than it holds.",
        site=cast.site,
        evidence=f"{cast.count / num_steps:.3g} a step from {cast.source}, {format_bytes(cast.bytes / num_steps)} "
        f"read and written, {extra} of it repetitions",
        remedy=INFO.remedy.replace("torch.bfloat16", f"torch.{_TORCH.get(cast.target, 'bfloat16')}"),
    )


_TORCH: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

RULE = Rule(info=INFO, check=check)
