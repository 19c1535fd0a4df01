"""DR403: a GPU waits for Python to launch its kernels."""

from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import data_share
from ampwise.records.finding import Confidence, Finding, RuleInfo, Severity

_SHARE: Final = 0.4

INFO = RuleInfo(
    id="DR403",
    name="launch-bound",
    severity=Severity.WARNING,
    why="Each operator costs the host some microseconds, however small its kernel is. Where the kernels are shorter "
    "than that, the GPU stands idle between them, and a faster format makes it idle longer.",
    remedy="Give it more work a launch: a larger batch, `torch.compile(model)`, an optimizer with `fused=True`, or "
    "`ampwise.TrainStep(..., capture=True)`, which replays the whole step as one.",
    evidence="small models gain nothing from AMP (apex issue 297, minGPT issue 51); the share in which no kernel runs "
    "is measured by torch's profiler. Judged on recordings only: no GPU was at hand to time the remedy.",
)


def check(case: Case) -> Iterator[Finding]:
    """A step in which no kernel runs for a large part, the wait for data aside."""
    kernels = case.run.kernels
    idle = None if kernels is None or kernels.device_busy_ms is None else kernels.idle_share
    if kernels is None or idle is None or idle - data_share(case.run.process) < _SHARE:
        return
    mean_us = 1e3 * kernels.work_ms / max(kernels.num_kernels, 1)
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY,
        message=f"The GPU stands idle for {idle:.0%} of the step, waiting for the host to launch kernels.",
        evidence=f"step {kernels.step}: {kernels.num_kernels} kernels of {mean_us:.3g} us on average, busy for "
        f"{kernels.work_ms:.3g} of {kernels.wall_ms - kernels.cost_ms:.3g} ms; {data_share(case.run.process):.0%} of "
        "the step is the wait for data",
        remedy=INFO.remedy,
    )


def reassure(case: Case) -> Iterator[str]:
    """Say for how long some kernel ran."""
    kernels = case.run.kernels
    idle = None if kernels is None or kernels.device_busy_ms is None else kernels.idle_share
    if idle is not None:
        yield f"the GPU is busy for {1 - idle:.0%} of a step"


RULE = Rule(info=INFO, check=check, reassure=reassure)
