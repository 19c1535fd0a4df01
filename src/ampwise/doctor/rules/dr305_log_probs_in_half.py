"""DR305: log-probabilities are rounded to half precision before the loss."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.formats.table import find_format
from ampwise.records.casts import OperatorCalls
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.site import Phase

_OPS: Final = frozenset({"aten._log_softmax", "aten.log_softmax", "aten.log_sigmoid_forward"})
_HALVES: Final = frozenset({"bf16", "fp16"})

INFO = RuleInfo(
    id="DR305",
    name="log-probabilities-in-half",
    severity=Severity.WARNING,
    why="log_softmax ran in half precision and rounded every log-probability: in bf16 one of -10 to a sixteenth. The "
    "loss of confident examples and its gradient lose their digits, and what is averaged is no longer the loss.",
    remedy="Give the loss fp32: `cross_entropy(logits.float(), y)`; `ampwise run` does it where the script leaves "
    "autocast to it.",
    evidence="cross_entropy is in no cast list of torch 2.13's C++ code: under autocast its log_softmax runs in the "
    "logits' format (read and measured).",
    bad=(
        Example(
            title="cross entropy of bf16 logits",
            source="""
import torch

model = torch.nn.Linear(16, 8).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(20):
    logits = model(torch.rand(32, 16).bfloat16())
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(32) % 8)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Log-softmaxes of the forward pass that gave half precision, as one finding."""
    found = [one for one in _calls(case) if one.result in _HALVES]
    if not found:
        return
    most = max(found, key=lambda one: one.count)
    module = inert_line(most.site.module) if most.site.module else "the loss"
    format_ = find_format(most.result)
    step = (
        "" if format_ is None else f"; at -10, two neighbouring {format_.name} numbers differ by {format_.ulp(10.0):g}"
    )
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"{inert_line(most.site.op or 'log_softmax')} of {module} gives log-probabilities in {most.result}.",
        site=most.site,
        evidence=f"{sum(one.count for one in found)} calls in the steps watched{step}",
        remedy=INFO.remedy,
    )


def reassure(case: Case) -> Iterator[str]:
    """Say that they were fp32's."""
    calls = list(_calls(case))
    if calls and case.run.precision != "fp32" and all(one.result not in _HALVES for one in calls):
        yield f"log-probabilities are computed in {calls[0].result}, {calls[0].count} calls looked at"


def _calls(case: Case) -> Iterator[OperatorCalls]:
    casts = case.run.casts
    for one in casts.calls if casts is not None else ():
        if one.site.op in _OPS and one.site.phase in {Phase.FORWARD, Phase.OTHER}:
            yield one


RULE = Rule(info=INFO, check=check, reassure=reassure)
