"""What one process of a run did, in a few lines for its reader."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ampwise._base.errors import RecordError
from ampwise._base.text import inert_line
from ampwise._base.units import format_ms
from ampwise.records.files import load, save
from ampwise.records.run import RunRecord

NO_STEP_FOUND = (
    "no training step found: looked for a backward pass (Tensor.backward, torch.autograd.backward) and an optimizer's "
    "step (torch.optim.Optimizer.step), in the script and in the Python processes it started"
)
_NOTHING_LEARNT = (
    "every step was skipped, for its gradients were not finite: the parameters are as they were. If the loss itself is "
    "not finite, the fault is in the forward pass. `ampwise doctor`, with the same options and script, names its "
    "place; bf16 has fp32's range"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The closing summary of a run."""

    precision: str
    """The format computed in."""
    reason: str
    """Why that precision, in words."""
    device: str
    num_steps: int
    step_ms_median: float | None
    """Over the last steps; None where there were fewer than two."""
    num_skipped: int
    final_scale: float | None
    """None without loss scaling."""
    allocator: str
    """The CPU allocator's setting, in words."""
    left_alone: str | None = None
    """The script's own mixed precision that ampwise left to it, with its place."""
    emulated: bool = False
    """Whether the device computed as if it had the precision's hardware."""
    num_ranks: int = 1
    """How many processes trained together."""
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The precision as readers are told it: ``emulated fp16``."""
        return f"emulated {self.precision}" if self.emulated else self.precision


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """What one process of a run leaves for the process that was started first."""

    rank: int
    summary: RunSummary
    run: RunRecord | None = None
    """Everything of it, where a record is wanted."""


def summary_lines(summary: RunSummary) -> tuple[str, ...]:
    """The summary as lines of text, without a prefix."""
    steps = "1 step" if summary.num_steps == 1 else f"{summary.num_steps} steps"
    counted = [steps if summary.num_ranks == 1 else f"{summary.num_ranks} ranks, {steps} each"]
    if summary.step_ms_median is not None:
        counted.append(f"median {format_ms(summary.step_ms_median)} a step")
    if summary.num_skipped or summary.final_scale is not None:
        counted.append(f"{summary.num_skipped} skipped")
    if summary.final_scale is not None:
        counted.append(f"final loss scale {summary.final_scale:g}")
    lines = [
        f"{summary.label} on {summary.device}: {summary.reason}",
        "; ".join(counted),
        f"CPU allocator: {summary.allocator}",
    ]
    if summary.left_alone is not None:
        kept = f"the script's own mixed precision was left to it: {summary.left_alone}"
        lines[0] = f"{summary.label} on {summary.device}; {kept}" if summary.emulated else kept
    if summary.num_steps and summary.num_skipped == summary.num_steps:
        lines.append(_NOTHING_LEARNT)
    return tuple(inert_line(line, max_length=500) for line in (*lines, *(f"note: {note}" for note in summary.notes)))


def together(reports: Sequence[ProcessReport]) -> RunSummary:
    """One summary of the ranks: the lowest one's that trained, the time of the slowest, and what sets one apart.

    Args:
        reports: at least one; of several with one rank the first counts.
    """
    ranks = {one.rank: one.summary for one in reversed(reports)}
    first = ranks[min(ranks, key=lambda rank: (ranks[rank].num_steps == 0, rank))]
    if len(ranks) == 1:
        return first
    times = {rank: one.step_ms_median for rank, one in ranks.items() if one.step_ms_median is not None}
    slowest = max(times, key=lambda rank: times[rank], default=None)
    return replace(
        first,
        num_ranks=len(ranks),
        step_ms_median=None if slowest is None else times[slowest],
        num_skipped=max(one.num_skipped for one in ranks.values()),
        notes=(*first.notes, *_differences(ranks)),
    )


def _differences(ranks: Mapping[int, RunSummary]) -> Iterator[str]:
    """In what the ranks were not alike, though they should be."""
    for what, values in (
        ("computed in different formats", {rank: one.precision for rank, one in ranks.items()}),
        ("made different numbers of steps", {rank: one.num_steps for rank, one in ranks.items()}),
        ("skipped different numbers of steps", {rank: one.num_skipped for rank, one in ranks.items()}),
        ("ended with different loss scales", {rank: one.final_scale for rank, one in ranks.items()}),
    ):
        if len(set(values.values())) > 1:
            yield f"the ranks {what}: " + ", ".join(f"rank {rank} {_told(values[rank])}" for rank in sorted(values))


def _told(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def leave_report(report: ProcessReport, *, parts: str, name: str) -> None:
    """Write the report into the folder ``parts``."""
    save(report, Path(parts, f"{name}.report.json"))


def read_reports(parts: str) -> Sequence[ProcessReport]:
    """The reports left in ``parts``, the lowest rank first; a half or foreign file is passed over."""
    reports: list[ProcessReport] = []
    for path in sorted(Path(parts).glob("*.report.json")):
        try:
            reports.append(load(path, ProcessReport))
        except RecordError:
            continue
    return sorted(reports, key=lambda report: (report.rank, -report.summary.num_steps))
