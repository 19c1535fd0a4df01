"""DR604: the scaler was given gradients in half precision to unscale."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR604",
    name="half-precision-gradients",
    severity=Severity.ERROR,
    why="A gradient scaler works on fp32 gradients. Parameters kept in fp16 have fp16 gradients, in which an "
    "unscaled gradient underflows, so torch refuses.",
    remedy="Keep what is trained in fp32, and let autocast make the half-precision copies.",
    evidence="pytorch issue 74739 and more than twenty others (LoRA weights and checkpoints loaded in fp16). On CUDA "
    "bf16 parameters fail in the scaler's kernel: pytorch issue 127176.",
    bad=(
        Example(
            title="a model cast to fp16",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    loss = model(torch.randn(4, 8, dtype=torch.float16)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Torch's refusal, with the parameters."""
    if crashed(case, CrashKind.HALF_GRADIENTS) is None:
        return
    crash = case.run.crash
    low = crash.low_parameters if crash is not None else ()
    named = ", ".join(f"{inert_line(one.name, max_length=60)} ({one.dtype})" for one in low[:4])
    num = crash.num_low_parameters if crash is not None else 0
    more = f" and {num - 4} more" if num > 4 else ""
    what = f"{num} of the optimizer's parameters {'are' if num != 1 else 'is'} in half precision: {named}{more}."
    remedy = f"{INFO.remedy} Call `model.float()`, or `p.data = p.data.float()` on those, before the optimizer is made."
    yield finding(case, INFO, what if low else "The gradients to unscale are in half precision.", remedy=remedy)


RULE = Rule(info=INFO, check=check)
