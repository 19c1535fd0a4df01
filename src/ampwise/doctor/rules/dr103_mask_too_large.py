"""DR103: a mask's constant leaves the format's range, or leaves nothing of a row."""

from collections.abc import Iterator
from dataclasses import replace

from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of
from ampwise.doctor.faults import faults
from ampwise.doctor.origins import findings, limits_of, place_words
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import Origin

_ROWS = (
    "Leave one key to each row (torch.where on rows that are masked whole), or set the rows to zero after the softmax "
    "with torch.nan_to_num."
)

INFO = RuleInfo(
    id="DR103",
    name="mask-too-large",
    severity=Severity.ERROR,
    why="A mask is added to attention scores as the format's lowest number. Two masks together, or one and a negative "
    "score, are below it: -inf. Where that is a whole row, softmax divides zero by zero.",
    remedy="Mask with half of the lowest number, `torch.finfo(scores.dtype).min / 2`, once; or, where each row keeps a "
    "key, with `scores.masked_fill(mask, -torch.inf)` or a boolean mask for scaled_dot_product_attention.",
    evidence="BLOOM and others add finfo.min twice (transformers issues 17306 and 18185; in bf16 NeMo Automodel 2658); "
    "rebuilt as a test.",
    bad=(
        Example(
            title="finfo.min added to negative scores",
            source="""
import torch

torch.manual_seed(0)
lowest = torch.finfo(torch.float16).min
mask = torch.tensor([[0.0, lowest], [lowest, lowest]], dtype=torch.float16)
model = torch.nn.Linear(8, 8).half()
with torch.no_grad():
    model.weight.fill_(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(20):
    x = model(torch.ones(2, 8, dtype=torch.float16))
    scores = -(x @ x.T) + mask
    loss = (scores.softmax(-1) @ x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Sums that a mask's constant brought to -inf, and softmaxes of rows that a mask left nothing of.

    Scores of -inf are a remark where each row kept a key: they are masked all the same.
    """
    found = [(one, cause_of(one)) for one in faults(case)]
    masks = [(one, _message(one), INFO.remedy) for one, cause in found if cause is Cause.MASK]
    for finding in findings(case, INFO, masks):
        yield replace(finding, severity=Severity.INFO) if case.run.keeps_numbers else finding
    empty = [one for one, cause in found if cause is Cause.EMPTY_ROW]
    rows = [(one, _row_message(one), _ROWS) for one in empty]
    yield from findings(case, INFO, rows, helps_in_fp32=False)


def _message(origin: Origin) -> str:
    limits, output = limits_of(origin), origin.output
    name, end = ("its format", "") if limits is None else (limits.name, f", which ends at -{limits.max:g}")
    count = output.num_negative_infinite if output is not None else 0
    return (
        f"A mask's constant takes {count} scores of {place_words(origin.site)} below the lowest number of {name}{end}."
    )


def _row_message(origin: Origin) -> str:
    return f"A mask leaves nothing of a row that {place_words(origin.site)} is taken over: its result is NaN."


RULE = Rule(info=INFO, check=check)
