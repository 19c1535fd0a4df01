"""The processes that trained together, a row each: who was slow, who skipped, whose numbers went wrong first."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes, format_ms
from ampwise.records.run import RankRecord, RunEnd, RunRecord
from ampwise.report.cells import NOTHING
from ampwise.report.listing import Listing, listing

_HEADINGS = "run|#rank|#steps|#skipped|#step|#to backward|#memory|#bad loss|end"
_CAPTION = (
    "Ranks wait for each other, so that their steps take equally long; the one that the others wait for takes longer "
    "from a step's end to its backward pass. A bad loss is the first one that is not finite."
)
_ENDS: Final = {RunEnd.NO_STEPS: "no steps", RunEnd.OUT_OF_MEMORY: "out of memory"}


def ranks_table(runs: Sequence[RunRecord]) -> Listing | None:
    """The ranks of each run; None where processes trained alone."""
    return listing("The ranks", _HEADINGS, _rows(runs), caption=_CAPTION)


def print_ranks(runs: Sequence[RunRecord], console: Console, *, with_notes: bool = False) -> None:
    """The same at a terminal.

    Args:
        runs: whose ranks.
        console: where to.
        with_notes: what was noted of the runs stands below.
    """
    told = ranks_table(runs)
    if told is None:
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    is_one = len({row[0] for row in told.rows}) == 1
    for column in told.columns[is_one:]:
        table.add_column(Text(column.heading), justify="left" if column.is_words else "right", overflow="fold")
    for row in told.rows:
        table.add_row(*map(Text, row[is_one:]))
    console.print(table)
    if told.num_left_out:
        console.print(Text(f"and {told.num_left_out} more", style="dim"))
    for note in (note for run in runs if with_notes for note in run.notes):
        console.print(Text(f"note: {inert_line(note, max_length=500)}", style="dim"))


def _rows(runs: Sequence[RunRecord]) -> Iterator[tuple[str, ...]]:
    for run in runs:
        for one in run.ranks:
            yield (run.variant if not run.repeat else f"{run.variant}, {run.repeat + 1}", *_cells(one))


def _cells(one: RankRecord) -> tuple[str, ...]:
    is_untold = one.end is RunEnd.KILLED and not one.num_steps
    return (
        str(one.rank),
        NOTHING if is_untold else str(one.num_steps),
        NOTHING if is_untold else str(one.num_skipped),
        NOTHING if one.step_ms_median is None else format_ms(one.step_ms_median),
        NOTHING if one.ahead_ms_median is None else format_ms(one.ahead_ms_median),
        NOTHING if one.peak_bytes is None else format_bytes(one.peak_bytes),
        NOTHING if is_untold else "none" if one.first_bad_loss is None else f"step {one.first_bad_loss}",
        _ENDS.get(one.end, one.end.value) if one.failure is None else one.failure.kind,
    )
