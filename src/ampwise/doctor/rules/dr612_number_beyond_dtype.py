"""DR612: a constant is too large for the tensor's dtype."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, place_words
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR612",
    name="number-beyond-dtype",
    severity=Severity.ERROR,
    why="A mask's constant such as -1e9 is beyond fp16, which ends at 65504, so filling a half-precision tensor "
    "with it raises.",
    remedy="Write `torch.finfo(scores.dtype).min`, or -inf, in place of the constant.",
    evidence="apex issues 93 and 1052; raised by masked_fill in this project's tests. bf16 holds 1e9, so it does not "
    "raise there.",
    bad=(
        Example(
            title="a mask of -1e9 in fp16",
            source="""
import torch

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mask = torch.eye(4, dtype=torch.bool)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        scores = model(torch.randn(4, 8)).masked_fill(mask, -1e9)
        loss = scores.float().softmax(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Torch's refusal."""
    if crashed(case, CrashKind.TOO_LARGE) is not None:
        yield finding(case, INFO, f"{place_words(case)} puts a number into a tensor whose dtype cannot hold it.")


RULE = Rule(info=INFO, check=check)
