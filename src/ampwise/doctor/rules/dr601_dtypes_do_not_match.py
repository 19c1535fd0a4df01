"""DR601: an operator was given tensors of different dtypes and refused."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, has_own_precision, place_words, site_of
from ampwise.doctor.origins import kept_in_fp32
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR601",
    name="dtypes-do-not-match",
    severity=Severity.ERROR,
    why="Some operators compute in one dtype only and convert nothing. Under autocast a result is in half "
    "precision, and a buffer it is written to, or a parameter beside it, is not.",
    remedy="Convert at that line (`x.to(buffer.dtype)`), or compute the module in fp32 by the plan's rule given "
    "here. Keep parameters in fp32: autocast makes the half-precision copies.",
    evidence="fourteen of torch 2.13's messages, raised by its operators in this project's tests. Index assignment, "
    "index_add_, scatter_, lerp and baddbmm raise so under autocast.",
    bad=(
        Example(
            title="a half-precision result written into an fp32 buffer",
            source="""
import torch


class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.key = torch.nn.Linear(8, 4)
        self.register_buffer("slots", torch.zeros(16, 4))

    def forward(self, x):
        keys = self.key(x)
        self.slots.index_copy_(0, torch.arange(4), keys.detach())
        return keys


model = torch.nn.Sequential(torch.nn.Linear(8, 8), Memory())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """A crash whose words are about dtypes, with the tensors that differ."""
    if crashed(case, CrashKind.DTYPES) is None:
        return
    because = f"dtypes do not match in {site_of(case).op or 'an operator'}"
    kept = None if has_own_precision(case) else kept_in_fp32(site_of(case), because)
    yield finding(
        case,
        INFO,
        f"{place_words(case)} was given {_dtypes(case)} and takes one dtype only.",
        remedy=_remedy(case),
        plan_rule=kept,
    )


def _dtypes(case: Case) -> str:
    tensors = case.run.crash.tensors if case.run.crash is not None else ()
    names = [f"{inert_line(one.name, max_length=40)} in {one.dtype}" for one in tensors]
    return " and ".join(names) if len({one.dtype for one in tensors}) > 1 else "tensors of different dtypes"


def _remedy(case: Case) -> str:
    crash = case.run.crash
    low = [one for one in crash.low_parameters if one.dtype != "fp32"] if crash is not None else []
    if low:
        named = ", ".join(inert_line(one.name, max_length=60) for one in low[:3])
        return f"Keep parameters in fp32 ({named} are in {low[0].dtype}: call model.float()), and let autocast convert."
    again = "; if the line does not explain it, run again with TORCH_SHOW_CPP_STACKTRACES=1"
    if has_own_precision(case):
        return (
            "Convert at that line (`x.to(other.dtype)`), or compute that module under "
            f"`torch.autocast(device, enabled=False)`{again}."
        )
    rule = ", or compute the module in fp32 by this rule of a plan" if site_of(case).module else ""
    return f"Convert at that line (`x.to(other.dtype)`){rule}{again}."


RULE = Rule(info=INFO, check=check)
