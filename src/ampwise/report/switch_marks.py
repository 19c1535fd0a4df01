"""Where groups of modules moved to another format: what is drawn of it over the loss, and the table."""

import html
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from ampwise._base.text import inert_line
from ampwise.records.recording import Recording
from ampwise.records.run import RunRecord
from ampwise.records.switches import SwitchRecord
from ampwise.report.listing import Listing, listing

MAX_SPANS: Final = 400
"""Stretches of a run that are shaded; further ones are too thin to be seen."""
_MOST_NAMES: Final = 4


def move_points(run: RunRecord) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """The steps from which on groups were in a safer format, and those from which on they were back, with words."""
    up: list[tuple[int, str]] = []
    down: list[tuple[int, str]] = []
    for (step, is_raised, after, cause), moved in groupby(run.switches, key=_move):
        names = [one.group for one in moved]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        words = f"{', '.join(names[:_MOST_NAMES])}{more} {'up' if is_raised else 'back'} to {after}: {cause}"
        (up if is_raised else down).append((step, html.escape(inert_line(words, max_length=240), quote=False)))
    return up, down


def raised_spans(run: RunRecord) -> Iterator[tuple[float, float]]:
    """The stretches in which any group was in a safer format, from half a step before to half a step behind."""
    raised: set[str] = set()
    begin: int | None = None
    for step, moved in groupby(run.switches, key=lambda one: one.step):
        for one in moved:
            (raised.add if one.is_raised else raised.discard)(one.group)
        if raised and begin is None:
            begin = step
        elif not raised and begin is not None:
            yield begin - 0.5, step - 0.5
            begin = None
    if begin is not None:
        yield begin - 0.5, max(begin, *(one.index for one in run.steps), 0) + 0.5


def shade(run: RunRecord, colour: str) -> list[dict[str, Any]]:
    """Plotly's shapes for those stretches, behind the lines."""
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": begin,
            "x1": end,
            "y0": 0,
            "y1": 1,
            "layer": "below",
            "fillcolor": colour,
            "opacity": 0.13,
            "line": {"width": 0},
        }
        for _, (begin, end) in zip(range(MAX_SPANS), raised_spans(run), strict=False)
    ]


def switches_table(runs: Sequence[RunRecord]) -> Listing | None:
    """Every move and its cause."""
    several = sum(bool(run.switches) for run in runs) > 1
    return listing(
        "Precision that moved",
        ("run|" if several else "") + "#from step|modules|from|to|because",
        [
            (*((run.variant,) if several else ()), str(one.step), one.group, one.before, one.after, one.cause)
            for run in runs
            for one in run.switches
        ],
        caption="Groups of modules that a PrecisionScheduler moved to a safer format, and back.",
    )


def has_moves(recording: Recording) -> bool:
    """Whether any run's precision moved."""
    return any(run.switches for run in recording.runs)


def _move(one: SwitchRecord) -> tuple[int, bool, str, str]:
    return one.step, one.is_raised, one.after, one.cause
