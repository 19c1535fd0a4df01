"""DR302: updates of weights are too small for the format that holds the weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.formats.table import find_format
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.numerics import LostUpdates, TensorKind, TensorStatistics
from ampwise.records.site import Phase, Site

_HALVES: Final = frozenset({"bf16", "fp16"})
_SHARE: Final = 0.3
_FEWEST: Final = 16

INFO = RuleInfo(
    id="DR302",
    name="lost-updates",
    severity=Severity.WARNING,
    why="The weights are kept in half precision. An update smaller than half the distance to the next number is "
    "rounded away, so the weight stays as it was, step after step; the smaller the learning rate, the more.",
    remedy="Keep the weights in fp32 (no `.bfloat16()` or `.half()`; autocast casts them), or take an optimizer that "
    "rounds by chance or keeps fp32 master weights.",
    evidence="torch issue 120376 and torchtune issue 2254; Zamirai et al. 2020: rounding to nearest cancels updates.",
    bad=(
        Example(
            title="parameters in bf16 with a small learning rate",
            source="""
import torch

torch.manual_seed(0)
model = torch.nn.Linear(32, 8).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.rand(64, 32).bfloat16()
for _ in range(20):
    loss = (model(x).float() - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class _Loss:
    tensor: TensorStatistics
    lost: LostUpdates


def check(case: Case) -> Iterator[Finding]:
    """Half-precision weights of which a third of the updates or more were lost, as one finding."""
    found = _own(case)
    lost, total = _sums(found)
    if total < _FEWEST or lost < _SHARE * total:
        return
    worst = max(found, key=lambda one: (one.lost.share, one.lost.num_updates))
    format_ = find_format(worst.lost.format)
    step = "" if format_ is None else f"; {format_.name} keeps {format_.mantissa_bits + 1} bits, so an update below "
    limit = "" if format_ is None else f"{format_.eps / 4:.2g} to {format_.eps / 2:.2g} of its weight is lost"
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"{lost / total:.0%} of the updates of weights in {worst.lost.format} are lost: the weight is the same "
        f"after the step. The most, {worst.lost.share:.0%}, of {_name(worst.tensor)}.",
        site=Site(phase=Phase.OPTIMIZER, module=worst.tensor.module),
        evidence=f"{lost} of {total} updates looked at, in {len(found)} weights{step}{limit}",
        remedy=INFO.remedy,
    )


def reassure(case: Case) -> Iterator[str]:
    """Say how few were lost, where weights are kept in half precision."""
    lost, total = _sums(_own(case))
    if total:
        yield f"{lost / total:.1%} of {total} updates of half-precision weights were lost"


def _own(case: Case) -> list[_Loss]:
    numerics = case.run.numerics
    return [
        _Loss(tensor, lost)
        for tensor in (numerics.tensors if numerics is not None else ())
        if tensor.kind is TensorKind.UPDATE
        for lost in tensor.lost
        if lost.is_own and lost.format in _HALVES and lost.num_updates and not tensor.num_non_finite_steps
    ]


def _sums(found: list[_Loss]) -> tuple[int, int]:
    return sum(one.lost.num_lost for one in found), sum(one.lost.num_updates for one in found)


def _name(tensor: TensorStatistics) -> str:
    name = tensor.parameter or "a weight"
    return inert_line(f"{tensor.module}.{name}" if tensor.module else name)


RULE = Rule(info=INFO, check=check, reassure=reassure)
