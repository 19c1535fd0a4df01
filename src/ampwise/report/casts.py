"""A run's casts: as a table that fits 80 columns, and as JSON."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes
from ampwise.records.casts import CastPlace, CastRecord
from ampwise.records.files import to_plain
from ampwise.records.run import RunRecord
from ampwise.records.site import Phase, Site
from ampwise.report.cells import NOTHING
from ampwise.report.listing import Listing, listing

_MAX_ROWS: Final = 25
_MAX_NOTES: Final = 5


@dataclass(slots=True)
class _Row:
    """One operator of one module in one dtype."""

    calls: int = 0
    ms: float = 0.0
    casts: int = 0
    bytes: int = 0


_Key = tuple[str, str, str]


def casts_json(run: RunRecord) -> dict[str, Any]:
    """The run's precision and its cast record in JSON's own types, with the shares that follow from it."""
    casts = run.casts
    return to_plain(
        {
            "precision": run.precision,
            "reason": run.reason,
            "left_alone": run.left_alone,
            "num_casts": casts.num_casts if casts else 0,
            "byte_share": casts.byte_share if casts else 0.0,
            "time_share": casts.time_share if casts else None,
            "casts": casts,
            "notes": run.notes,
        }
    )


def render_casts(run: RunRecord, console: Console) -> None:
    """Print what a run computed in which dtype, the largest share of the time first, and what its casts came to."""
    casts = run.casts
    if casts is None or not casts.steps:
        console.print("no step was watched to its end; give the script more steps", style="yellow")
        return
    whose = f"the script's own ({inert_line(run.left_alone)})" if run.left_alone else run.precision
    console.print(Text(headline(casts, precision=whose), style="bold"))
    rows = _rows(casts)
    console.print(_table(rows[:_MAX_ROWS], casts))
    if len(rows) > _MAX_ROWS:
        console.print(f"{len(rows) - _MAX_ROWS} more rows; --json has them all", style="dim")
    for note in (*notes(casts), *run.notes):
        console.print(Text(inert_line(note, max_length=400)))


def casts_table(run: RunRecord) -> Listing | None:
    """The same table for a page; None where no cast was recorded."""
    casts = run.casts
    if casts is None or not casts.steps:
        return None
    steps, total = len(casts.steps), casts.operator_ms or 0.0
    return listing(
        "Casts, and what ran in which format",
        "module|operator|in|#calls|#time|#casts|#bytes cast",
        [
            (
                module,
                op,
                dtype,
                f"{row.calls / steps:g}" if row.calls else NOTHING,
                f"{row.ms / total:.0%}" if total and row.ms else NOTHING,
                f"{row.casts / steps:g}" if row.casts else NOTHING,
                format_bytes(row.bytes / steps) if row.bytes else NOTHING,
            )
            for (module, op, dtype), row in _rows(casts)
        ],
        caption=f"{headline(casts, precision=run.precision)}. Figures are a step's, times shares of the operators'.",
    )


def headline(casts: CastRecord, *, precision: str) -> str:
    """What the casts came to, in a sentence."""
    steps = len(casts.steps)
    share = casts.time_share
    time = "" if share is None else f" and {share:.0%} of its time"
    per_step = casts.num_casts / max(steps, 1)
    return (
        f"{precision}: {per_step:.0f} casts a step, {casts.byte_share:.0%} of the bytes that operators moved{time} "
        f"({steps} step{'s' * (steps != 1)} watched)"
    )


def notes(casts: CastRecord) -> Iterator[str]:
    """What is worth a line of its own: expanded tensors, weights cast again and again, promotions."""
    steps = max(len(casts.steps), 1)
    expanded = [cast for cast in casts.casts if cast.expanded_bytes]
    for cast in expanded[:_MAX_NOTES]:
        size = format_bytes(cast.expanded_bytes / cast.count)
        yield (
            f"expanded: {_place(cast.site)} casts an expanded tensor, which then takes {size} more; cast it before "
            "expanding it"
        )
    for weight in casts.repeated[:_MAX_NOTES]:
        yield f"repeated: {weight.parameter} is cast to {weight.target} {weight.num_per_step:g} times a step"
    for promotion in casts.promotions[:_MAX_NOTES]:
        given = " and ".join(promotion.dtypes)
        count, place = promotion.count / steps, _place(promotion.site)
        yield f"promoted: {_op(promotion.site)} of {given} gives {promotion.result}, {count:g} a step, in {place}"
    if casts.note:
        yield casts.note


def _rows(casts: CastRecord) -> list[tuple[_Key, _Row]]:
    """Forward, loss and backward by module; the optimizer's operators as one row a dtype."""
    rows: dict[_Key, _Row] = defaultdict(_Row)
    for call in casts.calls:
        if call.dtype:
            row = rows[_module(call.site), _op(call.site), call.dtype]
            row.calls += call.count
            row.ms += call.ms or 0.0
    places = {key[:2]: key for key in sorted(rows, key=lambda key: rows[key].calls)}
    for cast in casts.casts:
        reason = (cast.reason or "kept").removeprefix("aten.")
        module = _module(cast.site)
        key = places.get((module, reason), (module, "cast kept" if cast.reason is None else reason, cast.target))
        _add_cast(rows[key], cast)
    return sorted(rows.items(), key=lambda item: (item[1].ms, item[1].bytes, item[1].calls), reverse=True)


def _add_cast(row: _Row, cast: CastPlace) -> None:
    row.casts += cast.count
    row.bytes += cast.bytes


def _table(rows: list[tuple[_Key, _Row]], casts: CastRecord) -> Table:
    num_steps, total_ms = len(casts.steps), casts.operator_ms or 0.0
    table = Table(box=box.SIMPLE, padding=0, pad_edge=False)
    table.add_column("module", overflow="ellipsis", no_wrap=True, max_width=22)
    table.add_column("operator", overflow="ellipsis", no_wrap=True, max_width=18)
    table.add_column("dtype", no_wrap=True, max_width=14)
    for heading in ("calls", "time", "casts", "cast"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (module, op, dtype), row in rows:
        table.add_row(
            Text(inert_line(module)),
            Text(inert_line(op)),
            dtype,
            f"{row.calls / num_steps:g}" if row.calls else "",
            f"{row.ms / total_ms:.0%}" if total_ms and row.ms else "",
            f"{row.casts / num_steps:g}" if row.casts else "",
            format_bytes(row.bytes / num_steps) if row.bytes else "",
        )
    table.caption = "calls, casts and bytes cast: a step; time: share of the operators'"
    return table


def _module(site: Site) -> str:
    match site.phase, site.module:
        case Phase.OPTIMIZER, _:
            return "(optimizer)"
        case _, None:
            return "(outside)"
        case _, "":
            return "(model)"
        case _, module:
            return module


def _op(site: Site) -> str:
    return "all operators" if site.phase is Phase.OPTIMIZER else (site.op or "").removeprefix("aten.")


def _place(site: Site) -> str:
    where = f" ({site.where})" if site.where else ""
    return f"{_module(site)}{where}"
