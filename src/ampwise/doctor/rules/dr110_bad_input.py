"""DR110: the model was given infinities or NaN."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.origins import losses
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import BadInput, NonFiniteRecord
from ampwise.records.run import Role
from ampwise.records.site import Phase, Site

INFO = RuleInfo(
    id="DR110",
    name="bad-input",
    severity=Severity.ERROR,
    why="A tensor was infinite or NaN before the model computed anything with it: the data holds it, the script's own "
    "preparation made it, or the checkpoint was saved so. Every loss after it is NaN, in any precision.",
    remedy="Find it where it comes from: `assert torch.isfinite(x).all()` behind the loader and the normalisation.",
    evidence="The model's arguments, parameters and buffers are looked at before its first operator runs.",
    bad=(
        Example(
            title="a missing value in the data",
            source="""
import torch

data = torch.rand(8, 4)
data[3, 2] = torch.nan
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Arguments, parameters and buffers that were not finite when the model was called; the first of each kind."""
    kinds: set[bool] = set()
    for one in _inputs(case):
        if one.is_parameter not in kinds:
            kinds.add(one.is_parameter)
            yield _finding(one, len(_inputs(case)))


def _inputs(case: Case) -> tuple[BadInput, ...]:
    """Those of the trace where there is one: a run that is watched now and then looks later."""
    for run in (case.rerun(Role.TRACED), case.run):
        if run is not None and run.nonfinite is not None and run.nonfinite.inputs:
            inputs = (one for one in run.nonfinite.inputs if run.role is Role.TRACED or not one.is_parameter)
            return tuple(one for one in inputs if one.is_parameter or not _is_made_here(run.nonfinite, one))
    return ()


def _is_made_here(seen: NonFiniteRecord, one: BadInput) -> bool:
    """Whether another module was seen to make it: with weights spoilt by a step before, or in the same step."""
    is_spoilt = any(step < one.step for step in seen.weight_steps)
    return is_spoilt or any(origin.step == one.step and origin.vanished is None for origin in seen.origins)


def _finding(one: BadInput, count: int) -> Finding:
    value = one.value
    module = inert_line(one.module) or "the model"
    held = f"{module} has a {inert_line(one.name)} that held" if one.is_parameter else f"{module} is given"
    held = held if one.module else held[0].upper() + held[1:]
    of_rank = "" if one.rank is None else f" of rank {one.rank}"
    behind = (
        f"before its first step{of_rank}"
        if one.is_parameter
        else f"as {inert_line(one.name)} at step {one.step}{of_rank}"
    )
    shape = "x".join(map(str, value.shape)) or "single"
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        message=f"{held} {losses(value)} {behind}: precision cannot fix it.",
        site=Site(phase=Phase.FORWARD, module=one.module, file=one.file, line=one.line),
        evidence=f"{value.dtype} {shape}, finite numbers {_range(one)}; {count} such tensor{'s' * (count != 1)} seen",
        remedy="Load an earlier checkpoint, or initialise it anew." if one.is_parameter else INFO.remedy,
    )


def _range(one: BadInput) -> str:
    if one.value.minimum is None or one.value.maximum is None:
        return "none"
    return f"from {one.value.minimum:.4g} to {one.value.maximum:.4g}"


RULE = Rule(info=INFO, check=check)
