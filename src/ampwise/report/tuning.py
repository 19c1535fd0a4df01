"""The search for a plan for a person at a terminal, and for a machine."""

import math
from collections.abc import Iterator
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes
from ampwise.records.files import to_plain
from ampwise.records.tuning import NoiseRecord, Outcome, TrialRecord, TuningRecord

_STYLES: Final = {Outcome.FOUND: "green", Outcome.OUT_OF_TIME: "yellow"}
_MAX_KEPT: Final = 25


def render_tuning(record: TuningRecord, console: Console) -> None:
    """Print the answer, which modules stay and why, and what was verified."""
    console.print(Text(inert_line(f"{record.explanation}.", max_length=2000), style=_STYLES.get(record.outcome, "red")))
    if record.kept:
        console.print(_table(record))
    for line in verified(record):
        console.print(Text(line))
    for note in record.notes:
        console.print(Text(f"note: {inert_line(note, max_length=1000)}", style="dim"))


def tuning_json(record: TuningRecord) -> dict[str, Any]:
    """The record in JSON's own types, with what was verified in words; floats that JSON lacks are tagged."""
    return {**to_plain(record), "verified": list(verified(record))}


def facts(record: TuningRecord) -> Iterator[str]:
    """What a plan file says of the plan in it: how it was found, and what was verified."""
    yield f"found by ampwise {record.environment.ampwise} tune on {record.created}: {' '.join(record.command)}"
    yield record.explanation
    yield from verified(record)


def verified(record: TuningRecord) -> Iterator[str]:
    """What the answer stands on, a sentence a line."""
    noise = record.noise
    if noise is None:
        return
    if record.outcome.has_plan:
        yield _losses(record)
    yield from _noise(noise)
    if record.ranked_steps:
        steps = " and ".join(str(step + 1) for step in record.ranked_steps)
        modules = _count(record.num_modules, "module")
        yield f"held out: steps {steps} ranked the {modules}; their losses are in no comparison"
    trials = f"{_count(len(record.trials), 'trial')} of {record.num_steps} steps{_resumed(record)}"
    yield f"{trials}, beside 3 in fp32, in {record.seconds:.0f} s"
    if record.peak_tensor_bytes is not None and record.peak_tensor_bytes_fp32 is not None:
        sizes = format_bytes(record.peak_tensor_bytes), format_bytes(record.peak_tensor_bytes_fp32)
        yield f"predicted memory: the tensors of a step hold {sizes[0]} at most, in fp32 {sizes[1]}"
    if record.emulated and record.outcome.has_plan:
        yield f"speed: not measured, for {record.target} was emulated on a CPU"
    elif record.ratio_time is not None:
        yield f"speed: a step takes {1 / record.ratio_time:.2f} times as long as in fp32"


def _noise(noise: NoiseRecord) -> Iterator[str]:
    level = noise.level or math.nan
    again = "the same losses" if not noise.rerun else f"a mean loss {noise.rerun / level:.2%} off"
    other = f"one {noise.seeds / level:.2%} off"
    yield f"noise of fp32: the same seeds give {again}, another seed {other}; tolerated are {noise.tolerance:.2%}"


def _losses(record: TuningRecord) -> str:
    kept = frozenset(one.name for one in record.kept)
    trials = [one for one in record.trials if frozenset(one.kept) == kept]
    noise = record.noise
    if not trials or noise is None:
        return "no trial of this plan is on record"
    told = "; with another seed ".join(_reason(one) for one in sorted(trials, key=lambda one: one.seed))
    return f"loss parity: in the mean of the last {noise.num_steps} of {record.num_steps} steps {told}"


def _reason(trial: TrialRecord) -> str:
    return inert_line(trial.reason, max_length=300)


def _resumed(record: TuningRecord) -> str:
    return f" ({record.resumed} of them made before)" if record.resumed else ""


def _table(record: TuningRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("stays", overflow="fold")
    table.add_column("because", overflow="fold")
    for one in record.kept[:_MAX_KEPT]:
        table.add_row(Text(inert_line(one.name) or "the model itself"), Text(inert_line(one.because, max_length=400)))
    if len(record.kept) > _MAX_KEPT:
        table.add_row(Text(f"and {len(record.kept) - _MAX_KEPT} more"), Text("the plan has them all"))
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
