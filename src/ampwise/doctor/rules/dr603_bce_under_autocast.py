"""DR603: binary cross entropy of probabilities under autocast."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, place_words
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR603",
    name="bce-under-autocast",
    severity=Severity.ERROR,
    why="binary_cross_entropy takes the logarithm of a probability. In fp16 a sigmoid saturates to 0 or 1, whose "
    "logarithm is infinite, so CUDA's autocast refuses it.",
    remedy="Leave the sigmoid out of the model and use `binary_cross_entropy_with_logits` "
    "(`torch.nn.BCEWithLogitsLoss`), which is exact; or compute the loss under `torch.autocast(device, "
    "enabled=False)` on `probabilities.float()`.",
    evidence="pytorch issue 61098. In bf16 a logit of 8 against target 0 gives a loss of 100 in place of 8.0003 "
    "(measured).",
    bad=(
        Example(
            title="CUDA's refusal, in its words",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(torch.randn(4, 8))
        if out.dtype is torch.float16:
            raise RuntimeError("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.")
        loss = torch.nn.functional.binary_cross_entropy(out, torch.ones(4, 1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """CUDA's refusal."""
    if crashed(case, CrashKind.UNSAFE_BCE) is not None:
        yield finding(case, INFO, f"{place_words(case)}: the loss of probabilities is not safe in half precision.")


RULE = Rule(info=INFO, check=check)
