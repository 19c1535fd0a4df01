"""DR107: running statistics hold infinities or NaN since a step whose update was skipped."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of
from ampwise.doctor.faults import faults
from ampwise.doctor.origins import place_words, seen_in
from ampwise.doctor.reruns import fails_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import Origin
from ampwise.records.site import Phase, Site

_FORWARD: Final = frozenset({Cause.OVERFLOW, Cause.INVALID, Cause.MASK, Cause.WIDE, Cause.UNCLEAR, Cause.EMPTY_ROW})
_RESET: Final = (
    "reset what is spoilt with `module.reset_running_stats()`, or load an earlier checkpoint; ampwise's "
    "`scaler.protect(model)` keeps the statistics out of skipped steps"
)

INFO = RuleInfo(
    id="DR107",
    name="poisoned-batch-norm",
    severity=Severity.ERROR,
    why="A forward pass held infinities, and BatchNorm averaged them into its running statistics. A skipped step takes "
    "back nothing of that: training goes on with the batch's own statistics, and evaluation gives NaN for ever.",
    remedy=f"Put the producer right, then {_RESET}.",
    evidence="torch issues 88474, 90342, 96798 and 115500; rebuilt as a test: the Linear before it is named.",
    bad=(
        Example(
            title="a Linear that overflows feeds BatchNorm",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.BatchNorm1d(4))
with torch.no_grad():
    model[0].weight.fill_(1e3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.rand(8, 4) + 200).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Running statistics that were not finite at the end of the run, and the operator that made what they averaged."""
    seen = case.run.nonfinite
    spoilt = [one for one in seen.buffers if "running_" in one] if seen is not None else []
    if not spoilt:
        return
    producer = next((one for one in faults(case) if cause_of(one) in _FORWARD), None)
    names = ", ".join(inert_line(one) for one in spoilt[:3])
    more = f" and {len(spoilt) - 3} more" if len(spoilt) > 3 else ""
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.POSSIBLE if producer is None else Confidence.CERTAIN,
        message=f"{names}{more} hold infinities or NaN, so the model gives NaN in eval(). {_blame(producer)}",
        site=Site(phase=Phase.FORWARD) if producer is None else producer.site,
        evidence=_evidence(case, spoilt, producer),
        remedy=_remedy(case, producer),
    )


def _blame(producer: Origin | None) -> str:
    if producer is None:
        return "Which operator's infinities they averaged was not seen."
    return f"BatchNorm only averaged them: {place_words(producer.site)} made them."


def _evidence(case: Case, spoilt: list[str], producer: Origin | None) -> str:
    skipped = [one.index for one in case.steps if one.skipped]
    shown = [f"{len(spoilt)} buffers not finite after step {len(case.steps) - 1}"]
    if skipped:
        shown.append(f"{len(skipped)} skipped steps kept the weights finite, the first step {skipped[0]}")
    if producer is not None:
        shown.append(seen_in(producer))
    return "; ".join(shown)


def _remedy(case: Case, producer: Origin | None) -> str:
    if fails_in_fp32(case):
        return f"The same run in fp32 fails too, so precision cannot fix it. {INFO.remedy}"
    if producer is None or not producer.site.module:
        return INFO.remedy
    return f"Compute {inert_line(producer.site.module)} in fp32, as its own finding says; then {_RESET}."


RULE = Rule(info=INFO, check=check)
