"""DR409: TF32 is off where the GPU has it, or its two switches disagree."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import in_format
from ampwise.formats.hardware import find_gpu
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.kernels import KernelRecord

_SHARE: Final = 0.2
_USES_TF32: Final = "tf32"

INFO = RuleInfo(
    id="DR409",
    name="tf32-off",
    severity=Severity.INFO,
    why="From Ampere on, tensor cores multiply fp32 numbers rounded to TF32's 10 bits of mantissa. torch leaves that "
    "off for matrix products. It has an old and a new switch, and reading the old one raises after setting the new.",
    remedy="Set one switch only, at the script's start: `torch.backends.cuda.matmul.fp32_precision = 'tf32'`, or "
    "`ampwise run --precision tf32`.",
    evidence="pytorch issue 179445, rebuilt as a test: after the new switch is set, reading the old one raises. That "
    "TF32 is faster was not measured here: no GPU was at hand.",
    bad=(
        Example(
            title="both switches set",
            source="""
import torch

torch.backends.cuda.matmul.fp32_precision = "tf32"
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Switches that clash anywhere; fp32 products that take time on a GPU whose tensor cores know TF32."""
    kernels = case.run.kernels
    if kernels is None or kernels.tf32 is None:
        return
    if kernels.tf32.clash is not None:
        yield Finding(
            rule=INFO.id,
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN,
            message="TF32's switches disagree; a library that reads the old one raises.",
            evidence=inert_line(kernels.tf32.clash),
            remedy="Set TF32 through one of them only: `torch.backends.cuda.matmul.fp32_precision = 'tf32'`, or "
            "`torch.backends.cuda.matmul.allow_tf32 = True`; `ampwise run --precision tf32` keeps both in step.",
        )
    yield from _is_off(kernels)


def _is_off(kernels: KernelRecord) -> Iterator[Finding]:
    gpu = find_gpu(kernels.device_name)
    wasted_ms = _without_tf32(kernels)
    if gpu is None or _USES_TF32 not in gpu.tensor_core_formats or wasted_ms < _SHARE * kernels.work_ms:
        return
    switches = kernels.tf32
    said = "" if switches is None else f"; the switches say {switches.matmul} for products, {switches.conv} for conv"
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY,
        message=f"fp32 products run without {gpu.name}'s tensor cores, for TF32 is off.",
        evidence=f"step {kernels.step}: {wasted_ms:.3g} of {kernels.work_ms:.3g} ms are fp32 products{said}",
        remedy=INFO.remedy,
    )


def _without_tf32(kernels: KernelRecord) -> float:
    """Time of fp32 products that the switches keep from TF32: torch's default is on for convolutions alone."""
    switches = kernels.tf32
    if switches is None:
        return 0.0
    fp32 = in_format(kernels.products, "fp32")
    products = sum(one.ms for one in fp32 if not one.num_spatial_dims and switches.matmul != _USES_TF32)
    return products + sum(one.ms for one in fp32 if one.num_spatial_dims and switches.conv == "ieee")


RULE = Rule(info=INFO, check=check)
