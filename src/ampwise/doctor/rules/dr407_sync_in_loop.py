"""DR407: the loop waits for the device in every step."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import step_ms
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.site import Phase
from ampwise.records.syncs import SyncKind, SyncPlace, SyncRecord

_LARGE: Final = 0.05
_DECISIONS: Final = frozenset({"if", "while", "assert", "bool()"})

INFO = RuleInfo(
    id="DR407",
    name="sync-in-loop",
    severity=Severity.INFO,
    why="Python runs ahead of a GPU and queues its work. A line that asks for a number waits until the queue is empty, "
    "and the GPU then stands idle until Python has filled it again.",
    remedy="Keep numbers on the device, and read them every hundred steps or once an epoch.",
    evidence="every wait is counted at its line in the steps watched; accelerate issue 1714: one `.item()` a step.",
    bad=(
        Example(
            title="numbers read in every step",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
best = 1e9
for _ in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loss < best:
        best = loss.detach()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Each place that waits once a step or more; half as often is enough where the wait was real."""
    record = case.run.syncs
    if record is None or not record.steps:
        return
    least = 0.5 if record.is_real else 1.0
    for place in record.places:
        if place.count / len(record.steps) >= least:
            yield _finding(case, record, place)


def reassure(case: Case) -> Iterator[str]:
    """Say how often a step waits."""
    record = case.run.syncs
    if record is not None and record.steps:
        would = "waits" if record.is_real else "would wait"
        on = "the device" if record.is_real else "a GPU"
        steps = f"{len(record.steps)} steps watched"
        yield f"the loop {would} for {on} {record.num_per_step:.1f} times a step ({steps})"


def _finding(case: Case, record: SyncRecord, place: SyncPlace) -> Finding:
    often = place.count / len(record.steps)
    times = "once" if often == 1 else f"{often:.3g} times"
    share = _share(case, record, place)
    waits = "waits for the device" if record.is_real else "would wait for a GPU"
    stall = f"; {place.stall_ms / len(record.steps):.3g} ms a step" if place.stall_ms is not None else ""
    free = "" if record.is_real else " On this CPU it costs nothing."
    is_costly = share is not None and share >= _LARGE
    return Finding(
        rule=INFO.id,
        severity=Severity.WARNING if is_costly else INFO.severity,
        confidence=Confidence.CERTAIN if record.is_real else Confidence.LIKELY,
        message=f"{inert_line(_call(place))} {waits} {times} a step.{free}",
        site=place.site,
        evidence=f"{place.count} times in {len(record.steps)} steps watched{stall}"
        + (f", {share:.0%} of the step" if share is not None else ""),
        remedy=_remedy(place),
    )


def _share(case: Case, record: SyncRecord, place: SyncPlace) -> float | None:
    """Which share of a step the host waited there; None where nothing was waited for or no step was timed."""
    step = step_ms(case.run)
    return None if place.stall_ms is None or not step else place.stall_ms / len(record.steps) / step


def _call(place: SyncPlace) -> str:
    if place.kind is SyncKind.SCALAR and place.call in _DECISIONS:
        return f"`{place.call.removesuffix('()')}` on a tensor"
    if place.kind is SyncKind.SCALAR and "(" not in place.call:
        return "Reading one number"
    return f"`{place.call}`"


def _remedy(place: SyncPlace) -> str:
    """What to write in its place."""
    if place.site.phase is Phase.OPTIMIZER and place.kind is SyncKind.SCALAR:
        return (
            "The optimizer or the scaler reads a number. `from ampwise import GradScaler` decides on the device; "
            "an optimizer with `fused=True` or `capturable=True` does too."
        )
    if place.kind is SyncKind.SCALAR and place.site.phase is Phase.FORWARD and place.call not in _DECISIONS:
        return (
            "The model itself asks for it. In a library it is often a check of a mask: give none where nothing is "
            "padded; in code of your own use `torch.where`."
        )
    if place.kind is SyncKind.SCALAR and place.call in _DECISIONS:
        return "Decide on the device: `torch.where(condition, a, b)`, `torch.minimum(best, loss.detach())`."
    if place.call == "print":
        return _INSTEAD[SyncKind.PRINT]
    if place.kind is SyncKind.SCALAR and "(" not in place.call:
        return (
            "The line does not say so: a tensor is formatted or used as an index there, or what the line calls reads "
            "it. Let a trainer or a logger log less often; LBFGS and other optimizers that search cannot do without."
        )
    return _INSTEAD[place.kind]


_INSTEAD: Final = {
    SyncKind.SCALAR: "Add up on the device, `total += loss.detach()`, and call `.item()` once, after the loop.",
    SyncKind.COPY: "Collect `x.detach()` in a list, and copy after the loop; or `x.to('cpu', non_blocking=True)`.",
    SyncKind.PRINT: "Print every hundredth step: `if step % 100 == 0:`, with `step` a plain number.",
    SyncKind.SHAPE: "Keep the shape: `torch.where(mask, x, 0)`, or `(x * mask).sum() / mask.sum()` for a mean.",
    SyncKind.EXPLICIT: "Leave `torch.cuda.synchronize()` out of the loop; around what is timed it has its place.",
    SyncKind.OTHER: INFO.remedy,
}

RULE = Rule(info=INFO, check=check, reassure=reassure)
