"""DR112: the model gives NaN where it is evaluated, though it trains well."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.origins import losses
from ampwise.doctor.reruns import seen_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.nonfinite import BadOutput
from ampwise.records.site import Phase, Site

INFO = RuleInfo(
    id="DR112",
    name="nan-in-evaluation",
    severity=Severity.ERROR,
    why="Losses, gradients and weights are finite, but without gradients the model gives NaN of finite arguments. In "
    "eval() other code runs: running statistics take the batch's place, caches and branches of their own are used.",
    remedy="Look at what differs in eval(): buffers, caches, branches on `self.training`, and inputs that training "
    "does not see, such as rows that are all padding. Anomaly detection does not see it; look for it with "
    "`torch.isnan(x).any()` in the forward pass.",
    evidence="What each outermost model gives without gradients is looked at, and its arguments before.",
    bad=(
        Example(
            title="a branch of its own in eval()",
            source="""
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        out = self.head(x)
        return out if self.training else torch.log(-1 - out.abs())

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(20):
    model.train()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 4:
        model.eval()
        with torch.no_grad():
            model(torch.zeros(8, 4) + 1)
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """The first NaN of an evaluation before anything of training was lost; spoilt running statistics are DR107's."""
    seen = case.run.nonfinite
    if seen is None or any("running_" in one for one in seen.buffers):
        return
    lost = min((*seen.loss_steps, *seen.gradient_steps, *seen.weight_steps), default=None)
    found = next((one for one in seen.outputs if lost is None or one.step < lost), None)
    if found is not None:
        yield _finding(case, found)


def _finding(case: Case, found: BadOutput) -> Finding:
    module = inert_line(found.module) or "the model"
    of_rank = "" if found.rank is None else f" of rank {found.rank}"
    shape = "x".join(map(str, found.value.shape)) or "single"
    message = f"{module} gives {losses(found.value)} where no gradients are asked for, while its training is finite."
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=message if found.module else message[0].upper() + message[1:],
        site=Site(phase=Phase.FORWARD, module=found.module, file=found.file, line=found.line),
        evidence=f"before step {found.step}{of_rank}: {found.value.dtype} {shape}, of finite arguments{_in_fp32(case)}",
        remedy=INFO.remedy,
    )


def _in_fp32(case: Case) -> str:
    seen = seen_in_fp32(case)
    if seen is None:
        return ""
    return "; in fp32 too" if seen.outputs else "; in fp32 it is finite"


RULE = Rule(info=INFO, check=check)
