"""DR404: a GPU's memory, not its tensor cores, sets the pace."""

from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import num_flops
from ampwise.formats.hardware import find_gpu
from ampwise.records.finding import Confidence, Finding, RuleInfo, Severity
from ampwise.records.kernels import KernelKind

_OF_BANDWIDTH: Final = 0.4
_OF_PRODUCTS: Final = 0.5

INFO = RuleInfo(
    id="DR404",
    name="memory-bandwidth-bound",
    severity=Severity.INFO,
    why="Sums, norms, activations and the optimizer compute little for each number they read. Tensor cores cannot make "
    "them faster; half as many bytes can, and so can reading each number once for several operators.",
    remedy="Let `torch.compile(model)` put neighbouring operators into one kernel, use an optimizer with `fused=True`, "
    "and keep activations in the low format between operators.",
    evidence="the roofline: operations a byte of the step, against what the GPU's data sheet can do of each. Judged on "
    "recordings only, with the peaks in formats/hardware.py; silent on GPUs whose peaks are not there, and on CPUs.",
)


def check(case: Case) -> Iterator[Finding]:
    """A step below the GPU's ridge that moves bytes at a good part of the memory's speed, and multiplies little."""
    kernels = case.run.kernels
    if kernels is None or not kernels.device_busy_ms:
        return
    gpu = find_gpu(kernels.device_name)
    if gpu is None or gpu.peak is None:
        return
    intensity = num_flops(kernels.products) / max(kernels.kernel_bytes, 1)
    gb_per_s = kernels.kernel_bytes / kernels.device_busy_ms / 1e6
    share = kernels.product_ms / kernels.device_busy_ms
    if gb_per_s < _OF_BANDWIDTH * gpu.peak.gb_per_s or share > _OF_PRODUCTS or intensity > gpu.peak.ridge:
        return
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY,
        message=f"The step is bound by {gpu.name}'s memory: only {share:.0%} of its time is matrix products.",
        evidence=f"step {kernels.step}: {intensity:.3g} operations a byte, where {gpu.name} needs {gpu.peak.ridge:.3g} "
        f"to be bound by products; {gb_per_s:.3g} of {gpu.peak.gb_per_s:g} GB/s; most time in {_largest(case)}",
        remedy=INFO.remedy,
    )


def _largest(case: Case) -> str:
    kernels = case.run.kernels
    products = {KernelKind.MATMUL, KernelKind.CONV, KernelKind.ATTENTION}
    others = [] if kernels is None else [one for one in kernels.operators if one.kind not in products]
    return ", ".join(f"{one.op} ({one.device_ms or 0.0:.3g} ms)" for one in others[:3]) or "no operator that is known"


RULE = Rule(info=INFO, check=check)
