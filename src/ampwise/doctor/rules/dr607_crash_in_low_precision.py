"""DR607: the script crashes in low precision only."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, has_own_precision, in_fp32, place_words, site_of
from ampwise.doctor.origins import kept_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR607",
    name="crash-in-low-precision",
    severity=Severity.ERROR,
    why="The script runs in fp32 and crashes in the low precision: some part of it does not take half-precision "
    "tensors.",
    remedy="Compute that module in fp32 by the plan's rule given here, or convert with `.float()` before that line.",
    evidence="the script itself, run in fp32 with autocast and the loss scale switched off.",
    bad=(
        Example(
            title="a check of the script's own",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.randn(4, 8))
    if out.dtype is not torch.float32:
        raise ValueError("probabilities do not sum to 1")
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """A crash of no known kind that the run in fp32 did without."""
    failure = crashed(case, CrashKind.OTHER)
    if failure is None or in_fp32(case) is not False:
        return
    because = f"{inert_line(failure.kind)} in {case.run.precision} only"
    kept = None if has_own_precision(case) else kept_in_fp32(site_of(case), because)
    remedy = INFO.remedy if kept else "Convert with `.float()` before that line, or leave autocast around it."
    message = f"{inert_line(failure.kind)} in {place_words(case)} comes of the low precision: in fp32 the run goes on."
    yield finding(case, INFO, message, remedy=remedy, plan_rule=kept)


RULE = Rule(info=INFO, check=check)
