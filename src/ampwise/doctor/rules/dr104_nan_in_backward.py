"""DR104: a gradient became infinite or NaN of finite numbers."""

import math
from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of
from ampwise.doctor.faults import faults
from ampwise.doctor.origins import findings, format_of, place_words, seen_beside
from ampwise.doctor.poles import POLES, is_pole
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import FoundBy, NonFiniteKind, Origin
from ampwise.records.site import Phase

INFO = RuleInfo(
    id="DR104",
    name="nan-in-backward",
    severity=Severity.ERROR,
    why="The forward pass was finite, but an operator's gradient was not: its slope is infinite where it was called "
    "(sqrt at 0), a branch of `where` that was not taken multiplies 0 by infinity, or the gradient leaves the format.",
    remedy="Keep the operand away from the point where the slope is infinite; `where` does not: clamp inside of it.",
    evidence="autograd multiplies each gradient by the operator's slope; 0 times infinity is NaN. Found without "
    "anomaly mode, by the operator's number in the graph.",
    bad=(
        Example(
            title="the root of zero",
            source="""
import torch

model = torch.nn.Linear(4, 4, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    distance = model(torch.zeros(8, 4)).square().sum(-1).sqrt()
    loss = distance.mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Operators of the backward pass that made infinities or NaN, but what a loss scale brought about."""
    seen = faults(case)
    found = [one for one in seen if cause_of(one) is Cause.BACKWARD and not _is_explained(case, one, seen)]
    if case.run.final_scale is not None or (case.run.usage is not None and case.run.usage.has_scaler):
        found = [one for one in found if case.run.has_lost_numbers and not _is_of_scale(one)]
    yield from findings(case, INFO, [(one, _message(one), _remedy(one)) for one in found])


def _is_explained(case: Case, origin: Origin, seen: tuple[Origin, ...]) -> bool:
    """Whether a forward operator's own fault says it all, or a step before had already spoilt the weights.

    Numbers too large for the forward pass leave the range in the backward pass as well; an infinite slope is a fault
    of its own.
    """
    loss = next((step.loss for step in case.steps if step.index == origin.step), None)
    is_lost = loss is not None and not math.isfinite(loss)
    if origin.found_by is FoundBy.GUARD:
        return seen[0] is not origin or is_lost
    forward = [one for one in seen_beside(case, origin) if _is_forward(one) and one.step == origin.step]
    if forward and is_lost and origin.forward_op not in POLES:
        return True
    return any(
        one.site.module == origin.site.module
        and (one.site.op == origin.forward_op or one.site.line == origin.site.line)
        for one in forward
    )


def _is_forward(origin: Origin) -> bool:
    return origin.site.phase not in {Phase.BACKWARD, Phase.OPTIMIZER}


def _is_of_scale(origin: Origin) -> bool:
    """A scaled gradient that leaves fp16 is what a loss scale's skipped steps are for; a division by zero is not."""
    if is_pole(origin):
        return False
    return origin.kind is NonFiniteKind.INF or format_of(origin) == "fp16"


def _is_product(origin: Origin) -> bool:
    return (origin.site.op or "").removeprefix("aten.").rstrip("_") in {"mul", "mm", "bmm", "addmm", "baddbmm", "sum"}


def _message(origin: Origin) -> str:
    what = "NaN" if origin.kind is NonFiniteKind.NAN else "infinite"
    if origin.site.op is None:
        owner = inert_line(origin.parameter or "a parameter")
        return f"The gradient of {owner} is not finite; which operator made it so was not seen."
    of = f", in the gradient of {inert_line(origin.forward_op)}" if origin.forward_op else ""
    return f"{place_words(origin.site)} makes a gradient {what}{of}, of finite numbers."


def _remedy(origin: Origin) -> str:
    pole = POLES.get(origin.forward_op or "")
    if pole is not None:
        return f"{pole[0].upper()}{pole[1:]}; `torch.where` does not keep a gradient away, clamp inside of it."
    if origin.kind is NonFiniteKind.INF and format_of(origin) == "fp16":
        return "The gradient leaves fp16: compute the module in fp32, or in bf16, which has fp32's range."
    if origin.kind is NonFiniteKind.INF and _is_product(origin):
        return f"The gradient leaves {format_of(origin)}'s range: make the loss smaller, or what it is computed of."
    return INFO.remedy


RULE = Rule(info=INFO, check=check)
