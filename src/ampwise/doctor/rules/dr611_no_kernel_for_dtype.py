"""DR611: torch has no kernel of the operator for the dtype."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, has_own_precision, place_words, site_of
from ampwise.doctor.origins import kept_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR611",
    name="no-kernel-for-dtype",
    severity=Severity.ERROR,
    why="Some operators exist in fp32 and fp64 only: factorisations, distances, histograms. Autocast does not "
    "know all of them.",
    remedy="Compute the module in fp32 by the plan's rule given here, or convert its input with `.float()`.",
    evidence='torch 2.13 on the CPU: `"cholesky_cpu" not implemented for \'Half\'`, `"cdist" not implemented for '
    "'BFloat16'` (raised in this project's tests).",
    bad=(
        Example(
            title="a factorisation of a half-precision product",
            source="""
import torch

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.randn(4, 8))
        loss = torch.cdist(out.bfloat16().clone(), out.bfloat16()).float().mean()
    with torch.autocast("cpu", enabled=False):
        loss = loss + torch.geqrf(out)[0].float().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Torch's refusal."""
    failure = crashed(case, CrashKind.NO_KERNEL)
    if failure is None:
        return
    kept = None if has_own_precision(case) else kept_in_fp32(site_of(case), "an operator has no kernel for the dtype")
    remedy = INFO.remedy if kept else "Convert the input of that call with `.float()`."
    yield finding(
        case, INFO, f"{place_words(case)} has no kernel for the dtype it was given.", remedy=remedy, plan_rule=kept
    )


RULE = Rule(info=INFO, check=check)
