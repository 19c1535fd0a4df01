"""DR304: rows that fp32 tells apart are equal in the low format."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.faults import faults
from ampwise.doctor.fp32_errors import born_here, errors, is_within, rows_fell_together
from ampwise.doctor.origins import remedy_at, rule_that_helps, with_precision
from ampwise.doctor.rule import Rule
from ampwise.formats.table import find_format
from ampwise.records.against_fp32 import ModuleError
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.site import Phase, Site

INFO = RuleInfo(
    id="DR304",
    name="rows-fell-together",
    severity=Severity.ERROR,
    why="A module gives different rows in fp32 and equal ones in the low format: positions, times or indices were held "
    "in a format that has no room for them. bf16 counts to 256, fp16 to 2048; the next numbers round to these.",
    remedy="Keep positions and angles in fp32 until their sine is taken (`.float()`, not `.to(x.dtype)`), or compute "
    "the module in fp32, by the plan's rule given here.",
    evidence="Rotary positions in bf16: diffusers issue 13922, transformers issue 29285, TransformerEngine issues 1245 "
    "and 2240; rebuilt as a test, in which 64 positions become one.",
    bad=(
        Example(
            title="rotary angles of positions in bf16",
            source="""
import torch


class Rotary(torch.nn.Module):
    def forward(self, positions, x):
        angle = positions.to(x.dtype)[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
        return torch.cat([angle.cos(), angle.sin()], dim=-1)


class Rotated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary, self.fc = Rotary(), torch.nn.Linear(4, 4)

    def forward(self, positions, x):
        return self.fc(x) * self.rotary(positions, x)


model = Rotated().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
positions, x = torch.arange(65_600, 65_664), torch.rand(64, 4).bfloat16()
for _ in range(20):
    loss = model(positions, x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """The first module whose rows fell together, and no other: those behind it only pass it on."""
    wrong = {one.module for one in born_here(case, least=0.1, growth=8.0)}
    overflowed = {one.site.module for one in faults(case)}  # infinite rows are equal too, for another reason
    apart = (one for one in errors(case) if rows_fell_together(one) and not _passes_on(one, wrong))
    found = next((one for one in apart if not _holds(one, overflowed)), None)
    if found is not None:
        yield _finding(case, found)


def _passes_on(one: ModuleError, wrong: set[str]) -> bool:
    """Whether the error arose in a module within it."""
    return any(module != one.module and is_within(module, one.module) for module in wrong)


def _holds(one: ModuleError, modules: set[str | None]) -> bool:
    """Whether one of ``modules`` is the module itself or hangs below it."""
    return any(module is not None and is_within(module, one.module) for module in modules)


def _low_format(case: Case, one: ModuleError) -> str:
    """The format that the rows were lost in: the run's, where the module widened its result afterwards."""
    record = case.run.against_fp32
    return record.format if one.dtype == "fp32" and record is not None else one.dtype


def _finding(case: Case, one: ModuleError) -> Finding:
    site = Site(phase=Phase.FORWARD, module=one.module)
    low = _low_format(case, one)
    format_ = find_format(low)
    limit = "" if format_ is None else f"; {format_.name} holds every whole number up to {format_.max_exact_integer}"
    name = inert_line(one.module) or "the model"
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"{name} ({inert_line(one.module_kind)}) gives {one.num_distinct_fp32} different rows in fp32 and "
        f"{one.num_distinct} in {low}.",
        site=site,
        evidence=f"of {one.num_rows} rows on one batch; relative error {one.relative:.2f}{limit}",
        remedy=with_precision(case, site, remedy_at(case, site, INFO.remedy)),
        plan_rule=rule_that_helps(case, site, f"its rows fall together in {low}"),
    )


RULE = Rule(info=INFO, check=check)
