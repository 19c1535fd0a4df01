"""DR412: the low format is no faster than fp32, and what takes the time instead."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.rules.dr401_precision_without_hardware import is_slow_on_cpu
from ampwise.doctor.speed import cast_share, data_share, low_format, step_cost
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.kernels import KernelRecord

_GAIN: Final = 1.1
_BEST_GAIN: Final = 1.2
"""The same, were all that watching took left out."""
_LOSS: Final = 0.8
_MOST: Final = 0.5
"""Of a step that waits for data in this share, the rest is of no weight."""
_FASTER_DATA: Final = (
    "Load in other processes that stay from epoch to epoch: `DataLoader(..., num_workers=4, persistent_workers=True)`."
)
_TINY_US: Final = 20.0
"""An operator that takes less than this on a CPU is mostly torch's own work around it."""

INFO = RuleInfo(
    id="DR412",
    name="no-gain",
    severity=Severity.INFO,
    why="A low format makes matrix products faster, and nothing else. Where casts, data, Python or other operators "
    "take the time, the step gains nothing, and pays for the casts.",
    remedy="Work on the largest cause given here first; until then fp32 costs nothing in accuracy.",
    evidence="the same steps run again in fp32, compared by CPU time on a CPU and by the median step on a GPU; "
    "apex issue 297, fairchem issue 397, minGPT issue 51.",
    bad=(
        Example(
            title="thin layers with casts between them",
            source="""
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).float().sin().cos()
        return x


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(50_000, 16)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


class _Cause(NamedTuple):
    share: float
    words: str
    remedy: str


def check(case: Case) -> Iterator[Finding]:
    """A step that is hardly faster than in fp32; what the hardware is to blame for is DR401's."""
    format_, cost, kernels = low_format(case), step_cost(case), case.run.kernels
    if format_ is None or cost is None or kernels is None:
        return
    if cost.gain >= _GAIN or cost.best_gain >= _BEST_GAIN:
        return
    if cost.is_cpu_time and is_slow_on_cpu(case, kernels, cost):
        return
    is_loss = cost.best_gain < _LOSS
    causes = sorted(_causes(case, kernels, is_loss=is_loss), reverse=True)
    verb = (
        f"is slower than fp32, {1 / cost.best_gain:.2f} times as long"
        if is_loss
        else f"gains hardly any time over fp32 ({cost.gain:.2f} times as fast)"
    )
    yield Finding(
        rule=INFO.id,
        severity=Severity.WARNING if is_loss and not _is_dwarfed(case, kernels) else INFO.severity,
        confidence=Confidence.LIKELY if is_loss else Confidence.POSSIBLE,
        message=f"{format_} {verb}. The largest cause: {causes[0].words} ({causes[0].share:.0%}).",
        evidence=f"{cost.words}; {', '.join(f'{one.words} {one.share:.0%}' for one in causes)}",
        remedy=causes[0].remedy,
    )


def reassure(case: Case) -> Iterator[str]:
    """Say how much is gained."""
    format_, cost = low_format(case), step_cost(case)
    if format_ is not None and cost is not None and cost.gain >= _GAIN:
        yield f"{format_} is {cost.gain:.2f} times as fast as fp32: {cost.words}"


def _is_tiny(case: Case, kernels: KernelRecord) -> bool:
    """Whether a CPU spends its time around the operators, not in them: a larger model helps then, no format does."""
    return case.is_on_cpu and 1e3 * kernels.operator_ms / max(kernels.num_operators, 1) < _TINY_US


def _is_dwarfed(case: Case, kernels: KernelRecord) -> bool:
    """Whether something else than computing decides how long a step takes."""
    return _is_tiny(case, kernels) or data_share(case.run.process) >= _MOST


def _causes(case: Case, kernels: KernelRecord, *, is_loss: bool) -> Iterator[_Cause]:
    """What takes the step's time, each as a share of the step; of a loss, only what fp32 has not as well."""
    idle, waiting = kernels.idle_share or 0.0, data_share(case.run.process)
    busy = 1 - idle
    casts = (cast_share(case.run) or 0.0) * busy
    products = min(kernels.product_ms / kernels.work_ms, 1.0) * busy if kernels.work_ms else 0.0
    rest = max(0.0, busy - casts - products)
    if not is_loss:
        yield _Cause(waiting, "waiting for data", _FASTER_DATA)
        yield _Cause(max(0.0, idle - waiting), "Python between the operators", _FEWER_CALLS)
    yield _Cause(casts, "casts between formats", "A larger batch shares each weight's cast among more samples.")
    if _is_tiny(case, kernels):
        yield _Cause(products + rest, "operators too small to matter, mostly torch's own work", _FEWER_CALLS)
        return
    yield _Cause(products, "matrix products themselves", _SMALL_PRODUCTS)
    yield _Cause(rest, "operators that the format does not make faster", _OTHERS)


_FEWER_CALLS: Final = "Give each call more to do: a larger batch, wider layers, or `torch.compile(model)`."
_SMALL_PRODUCTS: Final = (
    "The products are too small or of odd sizes for this format's instructions: a larger batch, sizes that are "
    "multiples of 8, `model.to(memory_format=torch.channels_last)` for convolutions."
)
_OTHERS: Final = "Let `torch.compile(model)` join them, and use an optimizer with `fused=True`."

RULE = Rule(info=INFO, check=check, reassure=reassure)
