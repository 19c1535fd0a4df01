"""A recording as TensorBoard shows it: curves as scalars, the sizes of numbers as histograms, findings as text."""

import textwrap
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ampwise._base.errors import CannotRunError, UsageError
from ampwise._base.text import inert_line
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.numerics import BINS_AN_OCTAVE, MagnitudeHistogram, TensorStatistics
from ampwise.records.recording import Recording
from ampwise.records.run import RunRecord, StepRecord

_BIAS: Final = 127
_TEXT_COLUMNS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One point of a curve."""

    tag: str
    value: float
    step: int


def write_events(recording: Recording, folder: Path, *, diagnosis: Diagnosis | None = None) -> None:
    """Write one TensorBoard run for each run of the recording into ``folder``.

    Args:
        recording: What was measured.
        folder: TensorBoard's ``--logdir``.
        diagnosis: What was found in the first run: a text beside its curves.

    Raises:
        CannotRunError: the package tensorboard is not installed.
        UsageError: the folder cannot be written.
    """
    writer_of = _writer_class()
    for place, (name, run) in enumerate(_named(recording)):
        try:
            writer = writer_of(str(folder / name))
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"cannot write {folder}: {reason}; name a folder you may write to") from error
        with closing(writer):
            for scalar in scalars(run):
                writer.add_scalar(scalar.tag, scalar.value, scalar.step)
            for tag, tensor, step in _histograms(run):
                writer.add_histogram_raw(tag, **raw_histogram(tensor.histogram), global_step=step)
            if diagnosis is not None and place == 0:
                writer.add_text("findings", findings_text(diagnosis), run.steps[-1].index if run.steps else 0)


def scalars(run: RunRecord) -> Iterator[Scalar]:
    """Loss, loss scale, skipped steps so far and step time, for each step that has them; a second optimizer's apart."""
    skipped: dict[int, int] = defaultdict(int)
    for step in run.steps:
        skipped[step.optimizer] += step.skipped
        values = {
            "loss": step.loss,
            "loss_scale": step.scale,
            "skipped_steps": None if step.scale is None else float(skipped[step.optimizer]),
            "step_ms": step.time_ms,
        }
        for name, value in values.items():
            if value is not None:
                yield Scalar(tag=_tag(name, step), value=value, step=step.index)


def raw_histogram(histogram: MagnitudeHistogram) -> dict[str, Any]:
    """The histogram of ``log2`` of the magnitudes, a bucket for each power of two, as TensorBoard stores one."""
    counts: dict[int, int] = defaultdict(int)
    for place, count in histogram.bins():
        counts[max(place // BINS_AN_OCTAVE, 1) - _BIAS] += count
    low, high = min(counts, default=0), max(counts, default=0)
    exponents = range(low, high + 1)
    return {
        "min": float(low),
        "max": float(high + 1),
        "num": histogram.num_nonzero,
        "sum": float(sum((exponent + 0.5) * count for exponent, count in counts.items())),
        "sum_squares": float(sum((exponent + 0.5) ** 2 * count for exponent, count in counts.items())),
        "bucket_limits": [float(exponent + 1) for exponent in exponents],
        "bucket_counts": [counts.get(exponent, 0) for exponent in exponents],
    }


def findings_text(diagnosis: Diagnosis) -> str:
    """The findings as a block of Markdown that is shown as it is: no name in it is read as markup."""
    lines = [
        textwrap.fill(line, _TEXT_COLUMNS, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False)
        for line in str(diagnosis).splitlines()
    ]
    return "\n".join(lines)


def _tag(name: str, step: StepRecord) -> str:
    return name if step.optimizer == 0 else f"{name}/optimizer_{step.optimizer + 1}"


def _named(recording: Recording) -> Iterator[tuple[str, RunRecord]]:
    """Each run with a folder's name of its own, made of harmless characters."""
    taken: dict[str, int] = defaultdict(int)
    for run in recording.runs:
        words = inert_line(f"{run.role.value} {run.variant} {run.repeat + 1}", max_length=80)
        name = "".join(one if one.isalnum() or one in "+." else "_" for one in words).strip(".")
        taken[name] += 1
        yield (name if taken[name] == 1 else f"{name}_{taken[name]}"), run


def _histograms(run: RunRecord) -> Iterator[tuple[str, TensorStatistics, int]]:
    if run.numerics is None:
        return
    last = run.numerics.steps[-1].index if run.numerics.steps else 0
    for tensor in run.numerics.tensors:
        if tensor.histogram.num_nonzero:
            name = ".".join(part for part in (tensor.module or "model", tensor.parameter) if part)
            yield f"log2_{tensor.kind.value}/{inert_line(name)}", tensor, last


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CannotRunError(
            "the package tensorboard is not installed; install it with: pip install 'ampwise[tensorboard]'"
        ) from error
    return SummaryWriter
