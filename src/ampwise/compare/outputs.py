"""Sets a variant's outputs beside fp32's: of runs with the same seeds, pass by pass."""

from collections.abc import Sequence
from itertools import chain

from ampwise.compare.parity import Judgement
from ampwise.records.outputs import OutputDistance, OutputRecord, distance
from ampwise.records.run import RunRecord


def output_distance(runs: Sequence[RunRecord], *, fp32: Sequence[RunRecord]) -> OutputDistance | None:
    """How far the outputs of all finished runs together are from fp32's; None where the runs are no evaluations."""
    theirs = {run.repeat: run.outputs for run in fp32 if run.has_finished and run.outputs is not None}
    pairs = [
        (run.outputs, theirs[run.repeat])
        for run in runs
        if run.has_finished and run.outputs is not None and run.repeat in theirs
    ]
    if not pairs:
        return None
    return distance(*(_together([pair[side] for pair in pairs], pairs) for side in (0, 1)))


def judge_outputs(seen: OutputDistance, *, is_reference: bool) -> Judgement:
    """What was compared, in words; how much error is too much only the user's metric can say, so no verdict."""
    if is_reference:
        return Judgement(verdict=None, reason="the reference: outputs are held against those of its runs")
    text = f"outputs differ from fp32's by {seen.relative_error:.2g} of their size"
    if seen.num_decisions:
        text += f"; {seen.num_flips} of {seen.num_decisions} largest entries of a row moved"
    return Judgement(verdict=None, reason=text)


def _together(records: Sequence[OutputRecord], pairs: Sequence[tuple[OutputRecord, OutputRecord]]) -> OutputRecord:
    """The passes of all runs, as many of each as both sides of its pair have."""
    lengths = [min(len(one.samples), len(other.samples)) for one, other in pairs]
    parts = (record.samples[:length] for record, length in zip(records, lengths, strict=True))
    return OutputRecord(samples=tuple(chain.from_iterable(parts)))
