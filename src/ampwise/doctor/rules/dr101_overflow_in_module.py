"""DR101: an operator's result is too large for its format."""

from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.origins import format_of, kept_in_fp32, origins, place_words, seen_in, what_removed_it
from ampwise.doctor.rule import Rule
from ampwise.formats.table import find_format
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import NonFiniteKind, Origin
from ampwise.records.site import Phase

_NARROW: Final = frozenset({"fp16", "fp8_e4m3", "fp8_e5m2"})
"""Formats whose range is narrower than fp32's."""

INFO = RuleInfo(
    id="DR101",
    name="overflow-in-module",
    severity=Severity.ERROR,
    why="A result was larger than its format can hold, so it became infinite; a later operator makes NaN of it, or a "
    "zero. fp16 ends at 65504, bf16 as far out as fp32.",
    remedy="Compute that module in fp32, by the plan's rule given here; or compute in bf16, which has fp32's range.",
    evidence="T5's wo layers overflow fp16 (transformers issues 9295 and 10830, kept in fp32 there); SDXL's VAE does. "
    "Both are rebuilt as tests and found at their module and operator.",
    bad=(
        Example(
            title="a product beyond 65504",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
with torch.no_grad():
    model[0].weight.mul_(3e5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(8, 64)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Operators of the forward pass that made infinities of finite numbers in a narrow format, one a site."""
    for origin in origins(case):
        if _is_overflow(origin):
            yield _finding(case, origin)


def reassure(case: Case) -> Iterator[str]:
    """Say how many steps went without one."""
    seen = case.run.nonfinite
    if seen is not None and seen.num_steps and not (seen.origins or seen.loss_steps):
        yield f"no loss, gradient or weight was infinite or NaN in {seen.num_steps} steps"


def _is_overflow(origin: Origin) -> bool:
    is_forward = origin.site.phase in {Phase.FORWARD, Phase.OTHER}
    return is_forward and origin.kind is NonFiniteKind.INF and format_of(origin) in _NARROW and origin.vanished is None


def _finding(case: Case, origin: Origin) -> Finding:
    name = format_of(origin) or ""
    format_ = find_format(name)
    limit = "" if format_ is None else f" {name} ends at {float(format_.max):g}."
    removed = list(what_removed_it(case))
    because = f"{name} overflow in {origin.site.op or 'an operator'} at step {origin.step}"
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"The result of {place_words(origin.site)} overflows {name}.{limit}",
        site=origin.site,
        evidence="; ".join([seen_in(origin), *removed]),
        remedy=INFO.remedy,
        plan_rule=kept_in_fp32(origin.site, because),
    )


RULE = Rule(info=INFO, check=check, reassure=reassure)
