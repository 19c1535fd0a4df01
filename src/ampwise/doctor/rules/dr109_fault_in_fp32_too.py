"""DR109: fp32 loses its numbers too, so no precision helps."""

from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of
from ampwise.doctor.faults import faults
from ampwise.doctor.origins import format_of, place_words, seen_in
from ampwise.doctor.reruns import fails_in_fp32, fp32_origin, fp32_run, is_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import Origin
from ampwise.records.site import Phase

_HERE: Final = frozenset({Cause.WIDE, Cause.UNCLEAR})
"""What no other rule speaks of."""
_REMEDIES: Final = {
    "aten.exp": "Subtract the row's maximum before exp: use softmax, logsumexp or log_softmax.",
    "aten.cosh": "Bound the argument before it.",
    "aten.pow": "Bound what is squared or raised to a power, or work with logarithms.",
    "aten.prod": "Sum logarithms instead.",
}
_GENERAL: Final = "Lower the learning rate, clip the gradients' norm, and look at that operator's inputs."

INFO = RuleInfo(
    id="DR109",
    name="fault-in-fp32-too",
    severity=Severity.ERROR,
    why="The same training in fp32 ends in infinities or NaN as well. bf16's range is fp32's, and no plan holds more "
    "than fp32 does: the formula, the data or the learning rate is at fault.",
    remedy="Change the formula or the learning rate; keep the precision for later.",
    evidence="dinov2 issue 583: exp of x / 0.04 overflows fp32, and only log-sum-exp helps; rebuilt as a test.",
    bad=(
        Example(
            title="exp overflows in any precision",
            source="""
import torch

model = torch.nn.Linear(4, 3)
with torch.no_grad():
    model.weight.fill_(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    weights = torch.exp(model(torch.ones(5, 4)) / 0.04)
    loss = (weights / weights.sum(0)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """What made infinities or NaN in fp32 or in a format of its range, and is no other rule's."""
    origin = fp32_origin(case) or _first_wide(case)
    if origin is None or _follows_a_lost_loss(case, origin):
        yield from _unseen(case)
    elif cause_of(origin) in _HERE and (fails_in_fp32(case) or fp32_run(case) is None) and case.run.has_lost_numbers:
        yield _finding(case, origin)


def _first_wide(case: Case) -> Origin | None:
    """Where no run was in fp32: bf16 ends where fp32 does."""
    return next((one for one in faults(case) if cause_of(one) is Cause.WIDE), None)


def _follows_a_lost_loss(case: Case, origin: Origin) -> bool:
    """Whether the fp32 run's loss was lost by then: what fails in backward after that has no fault of its own."""
    run = fp32_run(case)
    bad = run.first_bad_loss if run is not None else None
    return bad is not None and origin.site.phase is Phase.BACKWARD and origin.step >= bad


def _finding(case: Case, origin: Origin) -> Finding:
    own, wide = fp32_run(case), format_of(origin) or "its format"
    bad = own.first_bad_loss if own is not None else None
    shown = [seen_in(origin), *([f"the loss in fp32 is not finite from step {bad} on"] if bad is not None else [])]
    told = "fp32's run shows the same" if own is not None else f"{wide} reaches as far as fp32"
    told = "no format that it could be computed in reaches further" if is_in_fp32(case) else told
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY if own is None else Confidence.CERTAIN,
        message=f"The result of {place_words(origin.site)} is not finite in {wide}, and {told}: "
        "precision cannot fix it.",
        site=origin.site,
        evidence="; ".join(shown),
        remedy=_REMEDIES.get(origin.site.op or "", _GENERAL),
    )


def _unseen(case: Case) -> Iterator[Finding]:
    """fp32's loss is lost, but no operator of its run was seen to lose it."""
    run = fp32_run(case)
    bad = run.first_bad_loss if run is not None else None
    has_cause = any(one.site.phase is not Phase.BACKWARD for one in faults(case))
    has_other = has_cause or (case.run.nonfinite is not None and case.run.nonfinite.inputs)
    if run is None or bad is None or has_other or case.run.first_bad_loss is None:
        return
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY,
        message="The loss is not finite in fp32 either: precision cannot fix it.",
        evidence=f"in fp32 from step {bad} on, in {case.run.precision} from step {case.run.first_bad_loss} on",
        remedy=_GENERAL,
    )


RULE = Rule(info=INFO, check=check)
