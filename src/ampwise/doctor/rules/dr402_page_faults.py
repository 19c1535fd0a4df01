"""DR402: the allocator hands memory back to the system, and asks for it again in every step."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.process import ProcessRecord

_MANY: Final = 500
"""Page faults a step: 2 MB of fresh pages."""
_SHARE: Final = 0.1
_EXPORT: Final = "export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=68719476736"

INFO = RuleInfo(
    id="DR402",
    name="page-faults",
    severity=Severity.WARNING,
    why="glibc gives large tensors' memory back to the system when they die. The next step asks for it again, and the "
    "kernel maps and clears every page of it: time in which nothing is computed, in every precision.",
    remedy=f"Start the training with `ampwise run`, which sets the allocator, or `{_EXPORT}` before plain Python.",
    evidence="minor page faults and CPU time in the kernel, counted by the operating system over the steps.",
    bad=(
        Example(
            title="the allocator is trimmed in every step",
            source="""
import ctypes

import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
trim = ctypes.CDLL(None).malloc_trim
for _ in range(20):
    noise = [torch.zeros(1_000_000) for _ in range(8)]
    loss = model(torch.randn(64, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del noise
    trim(0)
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Steps with many page faults and much of their CPU time in the kernel."""
    process = case.run.process
    if process is None or not case.is_on_cpu or not _is_faulting(process):
        return
    allocator = inert_line(case.recording.environment.allocator)
    remedy = INFO.remedy
    if allocator.startswith("tuned"):
        remedy = (
            "The allocator keeps its memory already: something in the loop maps memory anew in every step. Make large "
            "tensors once, before the loop, and leave `malloc_trim` and shared memory out of it."
        )
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY,
        message=f"Every step maps {process.faults_per_step * 4 / 1024:.3g} MiB of memory anew.",
        evidence=f"{_figures(process)}; allocator: {allocator}",
        remedy=remedy,
    )


def reassure(case: Case) -> Iterator[str]:
    """Say how little the kernel had to do, and under which allocator."""
    process = case.run.process
    if process is not None and process.num_steps and case.is_on_cpu:
        tuned = case.recording.environment.allocator.startswith("tuned")
        under = " with ampwise's setting of the allocator" if tuned else ""
        yield f"the allocator keeps its memory: {_figures(process)}{under}"


def _is_faulting(process: ProcessRecord) -> bool:
    return process.faults_per_step >= _MANY and process.system_share >= _SHARE


def _figures(process: ProcessRecord) -> str:
    return f"{process.faults_per_step:.0f} page faults a step, {process.system_share:.0%} of the CPU time in the kernel"


RULE = Rule(info=INFO, check=check, reassure=reassure)
