"""DR105: the optimizer made infinities or NaN of finite gradients."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of, holds_zero
from ampwise.doctor.faults import faults
from ampwise.doctor.origins import findings, format_of, limits_of, place_words
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import FoundBy, Origin

_DIVISIONS: Final = frozenset({"aten.addcdiv_", "aten._foreach_addcdiv_", "aten.div", "aten.div_"})
_HALVES: Final = frozenset({"fp16", "bf16"})

INFO = RuleInfo(
    id="DR105",
    name="nan-in-optimizer",
    severity=Severity.ERROR,
    why="The gradients were finite, and the optimizer's step made NaN of them. Adam divides by sqrt(v) + eps; with "
    "parameters in fp16 its state is fp16 too, where eps=1e-8 is zero: a gradient of zero gives 0/0.",
    remedy="Keep the parameters in fp32 (no `.half()`, autocast casts them), or give the optimizer eps=1e-4.",
    evidence="optax issue 1754, torch issue 8860; rebuilt as a test and found at aten.addcdiv_.",
    bad=(
        Example(
            title="Adam on parameters in fp16",
            source="""
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.tensor([[1.0, 0.0, 2.0, 1.0]] * 8, dtype=torch.float16)
for _ in range(20):
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Operators of the optimizer that made infinities or NaN, or the parameter that only the guard saw."""
    seen = faults(case)
    found = [
        one
        for one in seen
        if cause_of(one) is Cause.OPTIMIZER and (one.found_by is not FoundBy.GUARD or one is seen[0])
    ]
    yield from findings(case, INFO, [(one, _message(one), _remedy(one)) for one in found], helps_in_fp32=False)


def _message(origin: Origin) -> str:
    owner = inert_line(origin.parameter or "a parameter")
    limits = limits_of(origin)
    if _is_eps(origin) and limits is not None:
        return (
            f"The optimizer divides by zero at {place_words(origin.site)}, for {owner}: in {limits.name} an epsilon "
            f"below {limits.smallest_subnormal / 2:.1g}, such as Adam's 1e-8, is zero."
        )
    return f"The optimizer's step makes {origin.kind.value} of {owner}, whose gradient was finite."


def _remedy(origin: Origin) -> str:
    if _is_eps(origin) or format_of(origin) in _HALVES:
        return INFO.remedy
    return "Lower the learning rate, clip the gradients' norm, and look at the optimizer's eps."


def _is_eps(origin: Origin) -> bool:
    divisor = origin.inputs[-1] if origin.inputs else None
    return origin.site.op in _DIVISIONS and format_of(origin) == "fp16" and divisor is not None and holds_zero(divisor)


RULE = Rule(info=INFO, check=check)
