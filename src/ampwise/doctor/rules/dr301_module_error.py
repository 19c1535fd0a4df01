"""DR301: a module's output in the low format is far from fp32's."""

import math
from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of
from ampwise.doctor.faults import faults
from ampwise.doctor.fp32_errors import born_here, errors, rows_fell_together
from ampwise.doctor.origins import remedy_at, rule_that_helps, with_precision
from ampwise.doctor.rule import Rule
from ampwise.records.against_fp32 import ModuleError
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.site import Phase, Site

_LEAST: Final = 0.1
"""A bf16 product is some 0.4 % off, a deep network's output a few percent."""
_GROWTH: Final = 8.0
_WRONG: Final = 0.5
_MAX_SHOWN: Final = 3

INFO = RuleInfo(
    id="DR301",
    name="module-error",
    severity=Severity.WARNING,
    why="The same batch was computed in the low format and in fp32. One module's output differs by a tenth of its size "
    "or more, and what it was given did not: its formula cancels digits or needs more range. No NaN shows that.",
    remedy="Compute that module in fp32, by the plan's rule given here.",
    evidence="||low - fp32|| / ||fp32|| of each module's output on one batch; a bf16 product is 0.4 % off.",
    bad=(
        Example(
            title="a variance as the difference of two large squares",
            source="""
import torch


class Spread(torch.nn.Module):
    def forward(self, x):
        return (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2


model = torch.nn.Sequential(Spread(), torch.nn.Linear(1, 2)).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
torch.manual_seed(0)
for _ in range(20):
    x = (torch.randn(64, 32) + 100).bfloat16()
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Modules in which an error against fp32 arises, unless an overflow of theirs is told already."""
    told = {one.site.module for one in faults(case) if cause_of(one) is not Cause.BACKWARD}
    found = [
        one
        for one in born_here(case, least=_LEAST, growth=_GROWTH)
        if one.module not in told and not rows_fell_together(one)
    ]
    for one in found[:_MAX_SHOWN]:
        yield _finding(case, one, len(found))


def reassure(case: Case) -> Iterator[str]:
    """Say how far the worst module is from fp32."""
    known = [one for one in errors(case) if math.isfinite(one.relative)]
    if not known or len(known) < len(errors(case)):
        return  # what is infinite is another rule's to tell
    worst = max(known, key=lambda one: one.relative)
    if worst.relative == 0.0 or worst.relative >= _LEAST:
        return  # both were computed alike; or it is not well
    yield (
        f"of {len(known)} outputs of modules compared with fp32 on one batch, the worst is {worst.relative:.2%} off, "
        f"of {inert_line(worst.module) or 'the model'}"
    )


def _finding(case: Case, one: ModuleError, count: int) -> Finding:
    site = Site(phase=Phase.FORWARD, module=one.module)
    name = inert_line(one.module) or "the model"
    given = "" if one.relative_input is None else f", its input {one.relative_input:.2%}"
    cosine = "" if one.cosine is None else f", cosine {one.cosine:.3f}"
    others = f"; {count} modules in all" if count > 1 else ""
    return Finding(
        rule=INFO.id,
        severity=Severity.ERROR if one.relative >= _WRONG else INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"The output of {name} ({inert_line(one.module_kind)}) in {one.dtype} is {one.relative:.0%} of its "
        "size away from fp32's, and the error arises there.",
        site=site,
        evidence=f"relative error {one.relative:.2%}{given}{cosine}, largest difference {one.max_abs:.3g} of "
        f"{one.amax:.3g}{others}",
        remedy=with_precision(
            case,
            site,
            remedy_at(case, site, INFO.remedy) if one.module else "Give the model's parts modules of their own.",
        ),
        plan_rule=rule_that_helps(case, site, f"{one.relative:.0%} away from fp32 in {one.dtype}"),
    )


RULE = Rule(info=INFO, check=check, reassure=reassure)
