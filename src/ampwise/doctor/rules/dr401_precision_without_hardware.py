"""DR401: a format that the hardware does not multiply fast."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import StepCost, cast_share, is_emulated, low_format, step_cost
from ampwise.formats.hardware import Gpu, find_gpu
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.kernels import KernelRecord

_SLOWER: Final = 0.5
"""Below this much of fp32's speed, products that take most of the time have no fast instructions."""
_PRODUCTS: Final = 0.25
"""Their share of one profiled step, which on a busy machine may be cut short by others."""
_CASTS: Final = 0.15

INFO = RuleInfo(
    id="DR401",
    name="precision-without-hardware",
    severity=Severity.WARNING,
    why="A format is faster only where tensor cores or vector instructions multiply it. Without them each number is "
    "widened first, and the step is slower than in fp32.",
    remedy="Compute in a format that this hardware multiplies; `ampwise info` says which.",
    evidence="CPU autocast in fp16 was measured a hundred times slower than fp32 on a CPU that has instructions for "
    "it; bf16 is chosen on T4 and V100, which have no tensor cores for it (pytorch issues 118499, 111456, 124996).",
    bad=(
        Example(
            title="fp16 on a CPU",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(64, 256)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """The format of most products, where a GPU's row lacks it or a CPU was slower with it than with fp32."""
    format_, kernels = low_format(case), case.run.kernels
    if format_ is None or kernels is None or is_emulated(case.run):
        return
    cost = step_cost(case)
    if not case.is_on_cpu:
        gpu = find_gpu(kernels.device_name or case.recording.environment.device_name)
        if gpu is not None and (format_ not in gpu.tensor_core_formats or format_ in gpu.faults):
            yield _on_gpu(gpu, format_, cost)
    elif cost is not None and is_slow_on_cpu(case, kernels, cost):
        yield _finding(
            f"This CPU ({inert_line(case.recording.environment.device_name)}) computes these products slower in "
            f"{format_} than in fp32.",
            f"{cost.words}: {1 / cost.best_gain:.3g} times as long without what watching took; "
            f"{kernels.product_ms / kernels.work_ms:.0%} of it in matrix products",
            "Train in fp32 here (`ampwise run --precision fp32`), or in what `ampwise info` calls fast on this CPU.",
        )


def is_slow_on_cpu(case: Case, kernels: KernelRecord, cost: StepCost) -> bool:
    """Whether a CPU lost time, and lost it in the products, not in the casts for them."""
    is_in_products = kernels.product_ms > _PRODUCTS * kernels.work_ms and (cast_share(case.run) or 0.0) < _CASTS
    return cost.best_gain < _SLOWER and is_in_products


def _on_gpu(gpu: Gpu, format_: str, cost: StepCost | None) -> Finding:
    fast = ", ".join(gpu.tensor_core_formats) or "no format"
    has_fault = format_ in gpu.faults
    ending = f" {gpu.faults[format_]}." if has_fault else ""
    instead = next((name for name in ("bf16", "fp16") if name in gpu.tensor_core_formats), "fp32")
    return _finding(
        f"{gpu.name} has no tensor cores for {format_}.{ending}",
        f"its tensor cores multiply {fast}" + (f"; {cost.words}" if cost is not None else ""),
        f"Train in {instead}: `ampwise run --precision {instead}`. To choose by the hardware, ask "
        "`torch.cuda.is_bf16_supported(including_emulation=False)`, or leave it to `--precision auto`.",
    )


def _finding(message: str, evidence: str, remedy: str) -> Finding:
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=message,
        evidence=evidence,
        remedy=remedy,
    )


RULE = Rule(info=INFO, check=check)
