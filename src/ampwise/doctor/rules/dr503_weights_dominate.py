"""DR503: weights, gradients and optimizer state take the memory, and mixed precision leaves them as they are."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.units import format_bytes, format_count
from ampwise.doctor.case import Case
from ampwise.doctor.memory import STATES, parts_words, peak_of
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import low_format
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.memory import MemoryCategory, MemoryPoint

_SHARE: Final = 0.6
_LEAST_BYTES: Final = 64 * 2**20
"""Below this nobody looks for memory."""
_FP32_BYTES: Final = 4

INFO = RuleInfo(
    id="DR503",
    name="weights-dominate",
    severity=Severity.INFO,
    why="Mixed precision halves activations. Parameters, gradients and the optimizer's state stay in fp32: 16 bytes a "
    "parameter with Adam, 8 with plain SGD, and the low format's copies of the weights come on top.",
    remedy="A larger batch costs little here. To shrink the rest: parameters in bf16 by a plan (`p=bf16`, with "
    '`updates = "stochastic"`), an optimizer with less state, or sharding over GPUs (FSDP).',
    evidence="the peak of one step, every storage sorted by what it is for; pytorch issues 61173 and 50941: memory is "
    "no lower with AMP.",
    bad=(
        Example(
            title="Adam, large layers, a small batch",
            source="""
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(1500, 1500) for _ in range(3)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for _ in range(14):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 1500)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """A peak of which these three are the most, in a training in low precision."""
    peak, format_ = peak_of(case), low_format(case)
    if peak is None or format_ is None:
        return
    states = sum(peak.bytes_of(category) for category in STATES)
    if states < _LEAST_BYTES or states < _SHARE * peak.total_bytes:
        return
    num_parameters = peak.bytes_of(MemoryCategory.PARAMETER) // _FP32_BYTES
    activations = peak.bytes_of(MemoryCategory.ACTIVATION)
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"{format_} cannot save much memory here: {states / peak.total_bytes:.0%} of the peak is weights, "
        f"gradients and optimizer state, {states / max(num_parameters, 1):.3g} bytes for each of "
        f"{format_count(num_parameters)} parameters.",
        evidence=f"peak {format_bytes(peak.total_bytes)}: {parts_words(peak)}",
        remedy=f"{INFO.remedy} In bf16 they would take {format_bytes(states / 2)} less; to halve the activations saves "
        f"{format_bytes(activations / 2)} at most.",
    )


def reassure(case: Case) -> Iterator[str]:
    """Say what the peak is made of."""
    peak = peak_of(case)
    if peak is not None and case.run.memory is not None and peak.total_bytes >= _LEAST_BYTES:
        yield f"a step takes {format_bytes(peak.total_bytes)} at its peak, {_largest(peak)}"


def _largest(peak: MemoryPoint) -> str:
    part = max(peak.categories, key=lambda one: one.bytes)
    share = part.bytes / peak.total_bytes
    return f"{share:.0%} of it {part.category.value.replace('_', ' ')}"


RULE = Rule(info=INFO, check=check, reassure=reassure)
