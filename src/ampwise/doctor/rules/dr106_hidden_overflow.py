"""DR106: an infinity turned into a finite number again, so that nothing but a wrong result shows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.causes import NARROW, Cause, cause_of
from ampwise.doctor.faults import faults
from ampwise.doctor.fp32_errors import error_of
from ampwise.doctor.origins import OR_BF16, findings, format_of, limits_of, place_words, remedy_at
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import Origin

_HARMLESS: Final = frozenset({"aten.exp", "aten.expm1", "aten.exp2"})
"""1 / (1 + exp(x)) is 0 for large x, as it should be."""
_TAKEN_OUT: Final = frozenset({"aten.where", "aten.nan_to_num", "aten.clamp", "aten.clamp_max", "aten.minimum"})
_BAD_ERROR: Final = 0.1
_WIDE: Final = (
    "No precision holds it: bound the operand, or work with logarithms. Leave it where a zero or a saturated number is "
    "what you mean."
)

INFO = RuleInfo(
    id="DR106",
    name="hidden-overflow",
    severity=Severity.ERROR,
    why="A result overflowed to infinity, and a later operator made a finite number of it: 1/inf is 0. The loss stays "
    "finite and no gradient is NaN, but the module's output is wrong: RMSNorm's square makes it all zero.",
    remedy="Compute that module in fp32, by the plan's rule given here, or in bf16; in the code, "
    "`x.float().pow(2)` as torch.nn.RMSNorm does.",
    evidence="torch issues 133085 and 134106, llama issue 1048; rebuilt as a test: an input of 700 squares beyond "
    "65504, rsqrt(inf) is 0.",
    bad=(
        Example(
            title="RMSNorm's square in fp16",
            source="""
import torch


class Norm(torch.nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


model = torch.nn.Sequential(Norm(), torch.nn.Linear(4, 2)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = model(torch.full((8, 4), 700.0, dtype=torch.float16)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Overflows of the forward pass that the loss does not show, one a site."""
    found = [one for one in faults(case) if cause_of(one) is Cause.HIDDEN]
    yield from _narrow(case, [one for one in found if format_of(one) in NARROW])
    wide = [one for one in found if format_of(one) not in NARROW and not _is_meant(one)]
    for finding in findings(case, INFO, [(one, _message(one), _WIDE) for one in wide], helps_in_fp32=False):
        yield replace(finding, severity=Severity.WARNING, confidence=Confidence.LIKELY)


def _narrow(case: Case, found: list[Origin]) -> Iterator[Finding]:
    """What fp32 holds: the error against it tells whether it matters."""
    for finding in findings(case, INFO, [(one, _message(one), _remedy(case, one)) for one in found]):
        module = finding.site.module if finding.site is not None else None
        error = error_of(case, module or "")
        op = finding.site.op if finding.site is not None else None
        is_harmless = op in _HARMLESS and (error is None or error < _BAD_ERROR)
        shown = "" if error is None else f"; the module's output is {error:.0%} of its size away from fp32's"
        yield replace(
            finding,
            severity=Severity.INFO if is_harmless else INFO.severity,
            evidence=f"{finding.evidence}{shown}",
        )


def _remedy(case: Case, origin: Origin) -> str:
    remedy = INFO.remedy if origin.site.op == "aten.pow" else INFO.remedy.partition("; in the code")[0] + "."
    return remedy_at(case, origin.site, remedy, or_else=OR_BF16)


def _is_meant(origin: Origin) -> bool:
    """Whether the script itself expects the infinity."""
    vanished = origin.vanished.op if origin.vanished is not None else None
    return origin.site.op in _HARMLESS or vanished in _TAKEN_OUT


def _message(origin: Origin) -> str:
    limits, vanished = limits_of(origin), origin.vanished
    name = limits.name if limits is not None else "its format"
    where = "a later operator" if vanished is None else place_words(vanished)
    return (
        f"The result of {place_words(origin.site)} overflows {name}, and {where} makes finite numbers of the "
        "infinities: the loss stays finite, the result is wrong."
    )


RULE = Rule(info=INFO, check=check)
