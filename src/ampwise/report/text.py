"""A recording for a person at a terminal."""

import io
import sys
from collections.abc import Callable, Iterable, Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampwise._base.text import inert_line
from ampwise.records.comparison import Comparison
from ampwise.records.recording import Recording
from ampwise.report.cells import NOTHING, Row, Tone, rows
from ampwise.report.ranks import print_ranks
from ampwise.report.words import headline, how_timed, notes, projection, ratios_mean

_STYLES = {Tone.GOOD: "green", Tone.CAUTION: "yellow", Tone.BAD: "red", Tone.PLAIN: ""}
_WIDE = 124
"""Columns below which two figures share a cell."""

_Column = tuple[str, Callable[[Row], str]]

_NAME: _Column = ("variant", lambda row: row.name)
_STEP: _Column = ("step (IQR)", lambda row: row.step_and_iqr)
_FORWARD: _Column = ("forward (IQR)", lambda row: row.step_and_iqr)
_SPEED: _Column = ("speed", lambda row: row.speed)
_RATE: tuple[_Column, ...] = (("samples/s", lambda row: row.rate), ("projected", lambda row: row.projected))
_LOSS: tuple[_Column, ...] = (("loss", lambda row: row.loss), ("verdict", lambda row: row.verdict))
_OUTPUT: tuple[_Column, ...] = (("output error", lambda row: row.difference), ("argmax moved", lambda row: row.flips))
_MEMORY: tuple[_Column, ...] = (("peak memory", lambda row: row.memory), ("smaller", lambda row: row.saving))
_SCALE: tuple[_Column, ...] = (("skipped", lambda row: row.skipped), ("scale", lambda row: row.scale))
_TRAINING = ((_NAME,), (_STEP,), (_SPEED,), _RATE, _LOSS, _MEMORY, _SCALE)
"""Columns, those together that share one where a terminal is narrow."""
_EVALUATION = ((_NAME,), (_FORWARD,), (_SPEED,), _RATE, _OUTPUT, _MEMORY)


def stdout_console() -> Console:
    """A console on stdout that shows a question mark for a character its encoding lacks, rather than failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console()


def render_table(recording: Recording, console: Console) -> None:
    """Print what the recording came to, its table, what failed, and what the ratios mean.

    Below 124 columns two figures share a cell, so that the table fits 80.
    """
    outcome = headline(recording)
    console.print(Text(outcome.text, style=f"bold {_STYLES[outcome.tone]}".strip()))
    comparison = recording.comparison
    if comparison is None or not comparison.variants:
        return
    table_rows = rows(comparison)
    has_figures = any(row.error is None for row in table_rows)
    if has_figures:
        console.print(_table(table_rows, _columns(comparison, wide=console.width >= _WIDE)))
    print_ranks([run for run in recording.runs if run.repeat == 0], console)
    for row in table_rows:
        if row.error is not None:
            console.print(Text(f"{row.name} did not finish: {row.error}", style=_STYLES[Tone.BAD]))
    explanations = _explanations(recording, comparison, table_rows) if has_figures else ()
    for line in (*explanations, *_noted(recording)):
        console.print(Text(line, style="dim"))


def _explanations(recording: Recording, comparison: Comparison, table_rows: Iterable[Row]) -> Iterator[str]:
    """What the figures mean and stand on."""
    projected = projection(comparison)
    if projected:
        yield projected
    for row in table_rows:
        if row.reason:
            verdict = "" if row.verdict == NOTHING else f"{row.verdict}: "
            yield f"{row.name}: {verdict}{row.reason}"
    yield ratios_mean(comparison)
    yield how_timed(comparison)
    yield f"Allocator of every variant: {inert_line(recording.environment.allocator)}."


def _noted(recording: Recording) -> Iterator[str]:
    """What was noted of all runs together, and of each variant's."""
    for text in recording.notes:
        line = inert_line(text, max_length=500)
        yield line[:1].upper() + line[1:]
    for variant, texts in notes(recording).items():
        yield from (f"{inert_line(variant)}: {inert_line(text, max_length=500)}" for text in texts)


def _columns(comparison: Comparison, *, wide: bool) -> tuple[_Column, ...]:
    groups = _EVALUATION if comparison.evaluates else _TRAINING
    return tuple(one for group in groups for one in group) if wide else tuple(map(_stacked, groups))


def _stacked(group: tuple[_Column, ...]) -> _Column:
    """One column of two lines: two figures, or one broken in two."""
    if len(group) == 1:
        ((heading, read),) = group
        return _broken(heading), lambda row: _broken(read(row))
    heading = "\n".join(heading for heading, _ in group).removeprefix("peak ")
    return heading, lambda row: "\n".join(read(row) for _, read in group)


def _broken(text: str) -> str:
    """In two lines, before what is in brackets or behind an arrow."""
    return text.replace(" (", "\n(").replace(" → ", "\n→ ")


def _table(table_rows: tuple[Row, ...], columns: tuple[_Column, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, (heading, _) in enumerate(columns):
        table.add_column(Text(heading), justify="left" if index == 0 else "right", overflow="fold")
    for row in table_rows:
        table.add_row(*(_cell(heading, read(row), row) for heading, read in columns))
    return table


def _cell(heading: str, content: str, row: Row) -> Text:
    """A cell's text, never read as markup; what judges is coloured."""
    return Text(content, style=_STYLES[row.tone] if "verdict" in heading else "")
