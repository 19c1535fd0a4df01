"""DR410: convolutions for which a low format often has no fast kernel."""

from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import LOW_FORMATS, shape_words
from ampwise.records.finding import Confidence, Finding, RuleInfo, Severity
from ampwise.records.kernels import MatrixProduct

_SHARE: Final = 0.2
_CORES: Final = 0.5

INFO = RuleInfo(
    id="DR410",
    name="slow-convolutions",
    severity=Severity.INFO,
    why="cuDNN's tensor-core kernels want many channels a group. Grouped and depthwise convolutions have few, and "
    "those in three dimensions have fewer kernels to choose from: in half precision they may be slower than in fp32.",
    remedy="Try `model.to(memory_format=torch.channels_last)` (`channels_last_3d`) and "
    "`torch.backends.cudnn.benchmark = True`; what stays slow can be kept in fp32 by a plan's rule for its module.",
    evidence="pytorch issues 43544 and 45420 (grouped), 57115 (Conv3d): slower with AMP. Judged on recordings only; "
    "silent on a CPU.",
)


def check(case: Case) -> Iterator[Finding]:
    """Such convolutions, where they take a fifth of a GPU's time and few of the products run on tensor cores."""
    kernels = case.run.kernels
    if kernels is None or not kernels.device_busy_ms:
        return
    slow = [
        one for one in kernels.products if one.dtype in LOW_FORMATS and (one.groups > 1 or one.num_spatial_dims > 2)
    ]
    share = sum(one.ms for one in slow) / kernels.device_busy_ms
    on_cores = kernels.tensor_core_share
    if share < _SHARE or on_cores is None or on_cores > _CORES:
        return
    largest = max(slow, key=lambda one: one.ms)
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.POSSIBLE,
        message=f"{_kind(largest)} in {largest.dtype} take {share:.0%} of the GPU's time, mostly without tensor cores.",
        evidence=f"step {kernels.step}: {on_cores:.0%} of the products' time ran on tensor cores; the largest is "
        f"{shape_words(largest)} in {largest.groups} groups, {largest.ms:.3g} ms",
        remedy=INFO.remedy,
    )


def _kind(product: MatrixProduct) -> str:
    """Depthwise convolutions have one channel out of each group."""
    if product.groups == 1:
        return "Convolutions in three dimensions"
    return "Depthwise convolutions" if product.n == 1 else "Grouped convolutions"


RULE = Rule(info=INFO, check=check)
