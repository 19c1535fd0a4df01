"""DR303: an argmax, a top-k or a sort comes out otherwise than in fp32."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.origins import rule_that_helps, with_precision
from ampwise.doctor.rule import Rule
from ampwise.records.against_fp32 import Flip
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.site import Phase, Site

_SHARE: Final = 0.05
_FEWEST: Final = 20

INFO = RuleInfo(
    id="DR303",
    name="flipped-decisions",
    severity=Severity.WARNING,
    why="An operator that decides (topk of a router, argmax, sort) chose otherwise in the low format than in fp32 on "
    "the same batch: the numbers it compares differ by less than the format tells apart.",
    remedy="Compute the module that decides, and what feeds it, in fp32: routers are small.",
    evidence="Switch Transformer (Fedus et al. 2021) keeps its router in fp32 for that reason.",
    bad=(
        Example(
            title="a router whose scores lie close together",
            source="""
import torch


class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(16, 8)

    def forward(self, x):
        scores = self.gate(x) * 1e-3 + 100
        top = scores.topk(2)
        return top.values * top.indices


torch.manual_seed(0)
model = Router().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = model(torch.randn(64, 16).bfloat16()).float().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Deciding operators of which a twentieth of the decisions or more came out otherwise."""
    record = case.run.against_fp32
    if record is None or record.format == "fp32":
        return
    for flip in record.flips:
        if flip.num_decisions >= _FEWEST and flip.num_flipped >= _SHARE * flip.num_decisions:
            yield _finding(case, flip, record.format)


def reassure(case: Case) -> Iterator[str]:
    """Say how many decisions were the same."""
    record = case.run.against_fp32
    total = sum(flip.num_decisions for flip in record.flips) if record is not None else 0
    if record is not None and total and record.format != "fp32":
        flipped = sum(flip.num_flipped for flip in record.flips)
        yield f"{flipped} of {total} decisions (topk, argmax, sort) came out otherwise than in fp32"


def _finding(case: Case, flip: Flip, name: str) -> Finding:
    site = Site(phase=Phase.FORWARD, module=flip.module, op=flip.op, file=flip.file, line=flip.line)
    share = flip.num_flipped / flip.num_decisions
    where = inert_line(flip.module) or "the model"
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"{share:.0%} of the decisions of {inert_line(flip.op)} in {where} come out otherwise in {name} than "
        "in fp32.",
        site=site,
        evidence=f"{flip.num_flipped} of {flip.num_decisions} decisions on one batch, from the same weights",
        remedy=with_precision(case, site, INFO.remedy),
        plan_rule=rule_that_helps(case, site, f"{share:.0%} of its decisions flip in {name}"),
    )


RULE = Rule(info=INFO, check=check, reassure=reassure)
