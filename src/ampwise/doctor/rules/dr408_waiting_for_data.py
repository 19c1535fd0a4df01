"""DR408: the step waits for its data."""

from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.process import ProcessRecord, StepParts

_SHARE: Final = 0.2
_LARGE: Final = 0.5
_IDLE: Final = 0.4
_LEAST_OTHER_MS: Final = 5.0
"""Less a step is what Python and the watching itself take around a small model, or another process of the machine."""

INFO = RuleInfo(
    id="DR408",
    name="waiting-for-data",
    severity=Severity.WARNING,
    why="While the loop waits for the next batch nothing is computed. A faster format only makes the wait a larger "
    "share of the step.",
    remedy="Load in other processes: `DataLoader(..., num_workers=4, persistent_workers=True)`, with "
    "`pin_memory=True` for a GPU; or prepare the data once, before the loop.",
    evidence="the time in the DataLoader's `__next__`, measured in every step.",
    bad=(
        Example(
            title="a slow dataset",
            source="""
import time

import torch


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(16)


model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in torch.utils.data.DataLoader(Slow(), batch_size=8):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
        Example(
            title="data made between the steps",
            source="""
import time

import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    time.sleep(0.02)
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """A DataLoader that is waited for in a fifth of the step; else Python busy outside of model and optimizer."""
    process = case.run.process
    if process is None or process.parts is None or not process.parts.total_ms:
        return
    parts = process.parts
    if process.data_share >= _SHARE:
        yield _waits(process, parts)
    elif parts.other_ms >= max(_LARGE * parts.total_ms, _LEAST_OTHER_MS) and _is_idle(case):
        yield _is_elsewhere(parts)


def reassure(case: Case) -> Iterator[str]:
    """Say how little of the step is spent waiting for the DataLoader."""
    process = case.run.process
    if process is not None and process.parts is not None and process.has_loader:
        yield f"waiting for the DataLoader takes {process.data_share:.0%} of a step"


def _is_idle(case: Case) -> bool:
    kernels = case.run.kernels
    idle = None if kernels is None else kernels.idle_share
    return idle is not None and idle >= _IDLE


def _remedy_for(num_workers: int) -> str:
    """What to do about a DataLoader with so many workers."""
    if not num_workers:
        return INFO.remedy
    return (
        f"It has {num_workers} worker{'s' * (num_workers > 1)} already. Keep them from epoch to epoch with "
        "`persistent_workers=True`; if they are not enough, give it more, or prepare the data once, before the loop."
    )


def _waits(process: ProcessRecord, parts: StepParts) -> Finding:
    return Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.CERTAIN,
        message=f"The loop waits for its DataLoader in {process.data_share:.0%} of the step.",
        evidence=_figures(parts),
        remedy=_remedy_for(process.num_workers),
    )


def _is_elsewhere(parts: StepParts) -> Finding:
    return Finding(
        rule=INFO.id,
        severity=Severity.INFO,
        confidence=Confidence.LIKELY,
        message=f"{parts.other_ms / parts.total_ms:.0%} of the step is spent outside of model, backward and optimizer, "
        "and nothing is computed in it.",
        evidence=_figures(parts),
        remedy="Look at what the loop does between the steps: data made there belongs into a DataLoader with "
        "`num_workers=4`, logging and saving every hundredth step.",
    )


def _figures(parts: StepParts) -> str:
    return (
        f"of {parts.total_ms:.3g} ms a step: data {parts.data_ms:.3g}, forward {parts.forward_ms:.3g}, "
        f"backward {parts.backward_ms:.3g}, optimizer {parts.optimizer_ms:.3g}, other {parts.other_ms:.3g} ms"
    )


RULE = Rule(info=INFO, check=check, reassure=reassure)
