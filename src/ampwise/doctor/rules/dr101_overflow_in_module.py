"""DR101: an operator's result is too large for its format."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of
from ampwise.doctor.faults import faults
from ampwise.doctor.origins import OR_BF16, findings, limits_of, place_words, remedy_at
from ampwise.doctor.rule import Rule
from ampwise.doctor.weights import holds_large_weight
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import Origin

INFO = RuleInfo(
    id="DR101",
    name="overflow-in-module",
    severity=Severity.ERROR,
    why="A result was larger than its format can hold, so it became infinite; a later operator makes NaN of it, or a "
    "zero. fp16 ends at 65504, bf16 as far out as fp32.",
    remedy="Compute that module in fp32, by the plan's rule given here; or compute in bf16, which has fp32's range.",
    evidence="T5's wo layers overflow fp16 (transformers issues 9295 and 10830, kept in fp32 there); SDXL's VAE does. "
    "Both are rebuilt as tests and found at their module and operator.",
    bad=(
        Example(
            title="a product beyond 65504",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
with torch.no_grad():
    model[0].weight.mul_(3e5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-15)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(8, 64)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Operators of the forward pass that made infinities of finite numbers in a narrow format, one a site."""
    found = [one for one in faults(case) if cause_of(one) is Cause.OVERFLOW and not holds_large_weight(case, one)]
    yield from findings(
        case, INFO, [(one, _message(one), remedy_at(case, one.site, INFO.remedy, or_else=OR_BF16)) for one in found]
    )


def reassure(case: Case) -> Iterator[str]:
    """Say how many steps went without one."""
    seen = case.run.nonfinite
    if seen is not None and seen.num_steps and case.run.keeps_numbers:
        yield f"no loss, gradient or weight was infinite or NaN in {seen.num_steps} step{'s' * (seen.num_steps != 1)}"


def _message(origin: Origin) -> str:
    limits = limits_of(origin)
    if limits is None:
        return f"The result of {place_words(origin.site)} overflows its format."
    return f"The result of {place_words(origin.site)} overflows {limits.name}. {limits.name} ends at {limits.max:g}."


RULE = Rule(info=INFO, check=check, reassure=reassure)
