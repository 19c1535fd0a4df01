"""DR608: cuDNN refused a call."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, has_own_precision, place_words, site_of
from ampwise.doctor.origins import kept_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR608",
    name="cudnn-bad-param",
    severity=Severity.ERROR,
    why="cuDNN refuses tensors that differ in dtype, or sizes, strides or a dtype that it has no kernel for, and "
    "says no more than its status.",
    remedy="Run again with TORCH_SHOW_CPP_STACKTRACES=1 to see the operator's own arguments; compute the module in "
    "fp32 by the plan's rule given here; `torch.backends.cudnn.enabled = False` shows whether cuDNN alone "
    "refuses.",
    evidence="cuDNN's status in the message; no GPU was at hand to raise it here.",
    bad=(
        Example(
            title="cuDNN's refusal, in its words",
            source="""
import torch


class Conv(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM")


model = torch.nn.Sequential(torch.nn.Linear(8, 8), Conv())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """CuDNN's refusal, with what the call was given."""
    if crashed(case, CrashKind.BAD_PARAM) is None:
        return
    crash = case.run.crash
    dtypes = sorted({one.dtype for one in crash.tensors}) if crash is not None else []
    differ = f" Its tensors are in {' and '.join(dtypes)}: make them one." if len(dtypes) > 1 else ""
    kept = None if has_own_precision(case) else kept_in_fp32(site_of(case), "cuDNN refuses the call")
    message = f"cuDNN refuses {place_words(case)}.{differ}"
    sure = Confidence.CERTAIN if differ else Confidence.LIKELY
    remedy = INFO.remedy if kept else INFO.remedy.replace(" by the plan's rule given here", "")
    yield finding(case, INFO, message, remedy=remedy, confidence=sure, plan_rule=kept)


RULE = Rule(info=INFO, check=check)
