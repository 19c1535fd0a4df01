"""DR102: a logarithm of zero, a division by zero, the root of a negative number."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of, ignores_every_target, is_of_nothing
from ampwise.doctor.faults import faults, meant
from ampwise.doctor.origins import findings, limits_of, place_words
from ampwise.doctor.reruns import fails_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.formats.spec import FloatFormat
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import NonFiniteKind, Origin

_HALVES: Final = frozenset({"fp16", "bf16"})
_STABLE: Final = {
    "log": "Take log_softmax, logsigmoid or binary_cross_entropy_with_logits of the logits, or clamp before the log",
    "log1p": "Take logsigmoid(-x) of the logits for log1p(-sigmoid(x)), or clamp before the log1p",
    "sqrt": "Clamp before the root: x.clamp(min=eps).sqrt()",
    "div": "Add an epsilon that the format holds (1e-6 in bf16, 1e-4 in fp16) or clamp the divisor",
}
_SKIP: Final = "Leave empty batches out: `if not len(x): continue`, or sum and divide by `max(count, 1)`."
_COUNT: Final = (
    'Leave batches out in which every target is `ignore_index`, or take `reduction="sum"` and divide by '
    "`(target != ignore_index).sum().clamp(min=1)`."
)

INFO = RuleInfo(
    id="DR102",
    name="invalid-arithmetic",
    severity=Severity.ERROR,
    why="An operator was given what it has no finite result for: log(0), 1/0, 0/0, the root of a negative number. In "
    "half precision that happens to formulas which are safe in fp32: an epsilon becomes zero, a probability one.",
    remedy="Use the formula that works on logits, clamp the operand, or compute the module in fp32.",
    evidence="1 - 1e-6 is 1 in bf16, so log1p of its negative is infinite (fastino GLiNER2 issue 155, rebuilt as a "
    "test); an epsilon of 1e-8 is 0 in fp16 (deit issue 29).",
    bad=(
        Example(
            title="the logarithm of a probability that is 1",
            source="""
import torch

model = torch.nn.Linear(4, 2).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    p = torch.sigmoid(model(torch.ones(8, 4, dtype=torch.bfloat16)) + 14)
    loss = -torch.log1p(-p).float().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Operators of the forward pass whose operand has no finite result, one a site."""
    found = [one for one in faults(case) if cause_of(one) is Cause.INVALID]
    is_vain = fails_in_fp32(case)
    yield from findings(case, INFO, [(one, _message(one), _remedy(one, is_vain=is_vain)) for one in found])


def reassure(case: Case) -> Iterator[str]:
    """Name the operators whose infinities are meant: nothing shows them."""
    found = meant(case)
    if found and not faults(case):
        places = ", ".join(f"{inert_line(one.site.op or '')} ({inert_line(one.site.where or '')})" for one in found[:3])
        yield f"no loss, gradient or weight shows the infinities that {places} gives, in fp32 as well"


def _message(origin: Origin) -> str:
    what = _of_nothing(origin) if is_of_nothing(origin) else _what(origin)
    return f"{place_words(origin.site)} {what}.{_why(origin)}"


def _of_nothing(origin: Origin) -> str:
    if ignores_every_target(origin):
        return "divides by the number of targets that count, of which there are none"
    return "is given a tensor without elements, and a mean of nothing is NaN"


def _what(origin: Origin) -> str:
    op = _family(origin)
    if op == "log1p":
        return "takes the logarithm of 1 + x where x is -1"
    if op == "log":
        return "takes the logarithm of a number that is not above 0"
    if origin.kind is NonFiniteKind.NAN and op == "sqrt":
        return "takes the root of a negative number"
    if origin.kind is NonFiniteKind.NAN and op == "div":
        return "divides zero by zero"
    return "divides by zero" if op == "div" else "leaves the range that it is defined on"


def _why(origin: Origin) -> str:
    limits = limits_of(origin)
    if is_of_nothing(origin) or limits is None or limits.name not in _HALVES:
        return ""
    if _family(origin) == "log1p":
        return f" In {limits.name} every probability above {1 - limits.eps / 4:.6g} is 1."
    return f" In {limits.name} {_smallest(limits)}"


def _smallest(limits: FloatFormat) -> str:
    if limits.name == "bf16":
        return f"a sum keeps 3 digits: adding an epsilon below {limits.eps / 4:.2g} of a number leaves the number."
    return f"an epsilon below {limits.smallest_subnormal / 2:.1g} is zero."


def _remedy(origin: Origin, *, is_vain: bool) -> str:
    """What to do; fp32 is named where it helps."""
    if is_of_nothing(origin):
        return _COUNT if ignores_every_target(origin) else _SKIP
    stable = _STABLE.get(_family(origin), "Clamp the operand to the operator's range")
    return f"{stable}." if is_vain else f"{stable}; or compute the module in fp32."


def _family(origin: Origin) -> str:
    op = (origin.site.op or "").removeprefix("aten.").rstrip("_")
    if op in {"rsqrt", "reciprocal", "div", "true_divide", "pow"}:
        is_root = op == "rsqrt" and origin.kind is NonFiniteKind.NAN
        return "sqrt" if is_root else "div"
    return "log" if op in {"log", "log2", "log10", "logit"} else op


RULE = Rule(info=INFO, check=check, reassure=reassure)
