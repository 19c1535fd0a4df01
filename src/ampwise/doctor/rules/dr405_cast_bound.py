"""DR405: casts between formats take a good part of the computing time."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes
from ampwise.doctor.case import Case
from ampwise.doctor.origins import place_words
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import cast_share, is_emulated
from ampwise.records.casts import CastOrigin, CastPlace, CastRecord
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.run import RunRecord

_SHARE: Final = 0.15
_LARGE: Final = 0.3
_LEAST_BYTES: Final = 256 * 2**10
"""A step's casts of fewer bytes cost their calls alone."""

INFO = RuleInfo(
    id="DR405",
    name="cast-bound",
    severity=Severity.INFO,
    why="autocast casts the weights once a step and each operand that comes in the other format. With a small batch "
    "that costs as much as the products it makes faster.",
    remedy="A larger batch shares each weight's cast among more samples. Keep one autocast region around the whole "
    "forward pass, so that its cache holds the casts.",
    evidence="the share of casts in the operators' time, measured in the steps watched; transformers issue 15026: with "
    "a small batch the casts of the weights dominate.",
    bad=(
        Example(
            title="large frozen weights, which autocast does not cache, and two samples",
            source="""
import torch

backbone = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6))).requires_grad_(False)
head = torch.nn.Linear(1024, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head(backbone(torch.randn(2, 1024))).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Casts that take at least 15 % of the step, with the place that moves the most."""
    run, share = case.run, cast_share(case.run)
    if share is None or share * _busy_share(run) < _SHARE or is_emulated(run):
        return
    casts = run.casts
    if casts is not None and sum(cast.bytes for cast in casts.casts) < _LEAST_BYTES * max(len(casts.steps), 1):
        return
    largest = max(casts.casts, key=_weight) if casts is not None and casts.casts else None
    site = None if largest is None else largest.site
    yield Finding(
        rule=INFO.id,
        severity=Severity.WARNING if share >= _LARGE else INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"Casts between formats take {share:.0%} of the computing time.",
        site=site,
        evidence="; ".join(_evidence(casts, largest)) or _profiled(run),
        remedy=_remedy(casts, largest),
    )


def reassure(case: Case) -> Iterator[str]:
    """Say how small the share of the casts is."""
    run, share = case.run, cast_share(case.run)
    if share is None or run.casts is None or not run.casts.num_casts or is_emulated(run) or any(check(case)):
        return
    moved = sum(cast.bytes for cast in run.casts.casts) / max(len(run.casts.steps), 1)
    few = f", and move {format_bytes(moved)} a step" if share >= _SHARE else ""
    yield f"casts take {share:.1%} of the computing time{few}"


def _busy_share(run: RunRecord) -> float:
    """Which share of the step is computing time: where a loop waits, casts matter less."""
    idle = None if run.kernels is None else run.kernels.idle_share
    return 1 - (idle or 0.0)


def _weight(cast: CastPlace) -> float:
    return cast.ms if cast.ms is not None else float(cast.bytes)


def _evidence(casts: CastRecord | None, largest: CastPlace | None) -> Iterator[str]:
    if casts is None or largest is None:
        return
    num_steps = max(len(casts.steps), 1)
    moved = sum(cast.bytes for cast in casts.casts) / num_steps
    yield f"{casts.num_casts / num_steps:.0f} casts a step move {format_bytes(moved)}, {casts.byte_share:.0%} of all"
    reason = "" if largest.reason is None else f" for {inert_line(largest.reason)}"
    yield (
        f"the most at {place_words(largest.site)}, {largest.source} to {largest.target}{reason}: "
        f"{format_bytes(largest.bytes / num_steps)} a step"
    )
    for weight in casts.repeated[:1]:
        yield f"{inert_line(weight.parameter)} is cast {weight.num_per_step:.3g} times a step"


def _profiled(run: RunRecord) -> str:
    kernels = run.kernels
    return "" if kernels is None else f"step {kernels.step}: {kernels.cast_ms:.3g} of {kernels.work_ms:.3g} ms"


def _remedy(casts: CastRecord | None, largest: CastPlace | None) -> str:
    if casts is not None and any(weight.num_per_step > 1.5 for weight in casts.repeated):
        return (
            "The same weights are cast several times a step: keep one autocast region around the whole forward pass, "
            "and do not set cache_enabled=False."
        )
    if largest is not None and largest.origin is CastOrigin.SCRIPT:
        return "The largest is the script's own: leave the `.to(dtype)` or `.float()` there to autocast."
    return INFO.remedy


RULE = Rule(info=INFO, check=check, reassure=reassure)
