"""DR507: the loop hands the allocator's cache back to the driver."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.memory import CacheEmptied

INFO = RuleInfo(
    id="DR507",
    name="cache-emptied-in-loop",
    severity=Severity.WARNING,
    why="`torch.cuda.empty_cache()` gives cached blocks back to the driver, and the next step must ask for them again, "
    "waiting for the GPU each time. It frees nothing that a tensor holds, so it cannot help against running out.",
    remedy="Leave it out of the loop. Against memory in pieces set "
    "`PYTORCH_ALLOC_CONF=expandable_segments:True` instead.",
    evidence="calls counted over the whole run, each at its line. What one costs was not measured: no GPU was at hand.",
    bad=(
        Example(
            title="in every step",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.empty_cache()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Each line of the loop that does so."""
    memory = case.run.memory
    if memory is not None:
        yield from (_finding(case, one) for one in memory.cache_emptied if one.in_loop)


def _finding(case: Case, one: CacheEmptied) -> Finding:
    num_steps = len(case.steps)
    often = f"{one.count / num_steps:.3g} times a step" if num_steps else f"{one.count} times"
    on_cpu = " On this CPU it does nothing." if case.is_on_cpu else ""
    return Finding(
        rule=INFO.id,
        severity=Severity.INFO if case.is_on_cpu else INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"`torch.cuda.empty_cache()` is called {often}.{on_cpu}",
        site=one.site,
        evidence=f"{one.count} calls in {num_steps} steps",
        remedy=INFO.remedy,
    )


RULE = Rule(info=INFO, check=check)
