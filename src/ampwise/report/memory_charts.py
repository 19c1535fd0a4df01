"""What a step holds in memory, moment by moment."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from ampwise._base.units import format_bytes
from ampwise.records.memory import MemoryCategory, MemoryPoint
from ampwise.report.charts import Figure, layout

_COLOURS: Final = {
    MemoryCategory.PARAMETER: "#0072b2",
    MemoryCategory.OPTIMIZER_STATE: "#56b4e9",
    MemoryCategory.GRADIENT: "#e69f00",
    MemoryCategory.ACTIVATION: "#009e73",
    MemoryCategory.CAST: "#cc79a7",
    MemoryCategory.TEMPORARY: "#d55e00",
    MemoryCategory.WORKSPACE: "#f0e442",
    MemoryCategory.OTHER: "#999999",
}
"""After Okabe and Ito, in the order in which they are stacked: what stays below, what comes and goes on top."""
_ROOM: Final = 1.28
"""The chart's height over the peak's, so that the peak's name stands below those of the step's parts."""


def memory_timeline(points: Sequence[MemoryPoint], peak: MemoryPoint | None = None) -> Figure | None:
    """Live bytes over one step, stacked by what they are for, with the peak marked; None without points.

    The horizontal axis counts the tensors that came and went: it is no time.
    """
    if not points:
        return None
    peak = peak or max(points, key=lambda one: one.total_bytes)
    highest = max(peak.total_bytes, *(point.total_bytes for point in points))
    divisor, unit = _unit(highest)
    data = [
        _area(points, category, divisor) for category in _COLOURS if any(point.bytes_of(category) for point in points)
    ]
    room = {"range": [0, _ROOM * max(highest, 1) / divisor]}
    made = layout(x="tensors that came or went, from the step's start", y=unit, y_axis=room, height=400)
    made["legend"]["traceorder"] = "normal"
    made["hovermode"] = "x unified"
    made["hoverlabel"] = {"bgcolor": "#23272e", "font": {"color": "#ffffff"}}
    made["shapes"] = list(_borders(points))
    made["annotations"] = [*_phases(points), *_peak(peak, divisor)]
    return {"data": data, "layout": made}


def _unit(num_bytes: int) -> tuple[float, str]:
    for divisor, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if num_bytes >= divisor:
            return divisor, unit
    return 2**10, "KiB"


def _area(points: Sequence[MemoryPoint], category: MemoryCategory, divisor: float) -> Figure:
    sizes = [point.bytes_of(category) for point in points]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": category.value.replace("_", " "),
        "x": [point.event for point in points],
        "y": [float(f"{size / divisor:.5g}") for size in sizes],
        "text": [format_bytes(size) for size in sizes],
        "stackgroup": "memory",
        "line": {"shape": "hv", "width": 0.6, "color": _COLOURS[category]},
        "fillcolor": _COLOURS[category],
        "hovertemplate": "%{text}",
    }


def _phases(points: Sequence[MemoryPoint]) -> Iterator[dict[str, Any]]:
    """The name of each part of the step that is wide enough to bear it."""
    span = max(points[-1].event - points[0].event, 1)
    for phase, group in groupby(points, key=lambda one: one.phase):
        events = [point.event for point in group]
        if (events[-1] - events[0]) / span >= 0.12:
            middle = (events[0] + events[-1]) / 2
            yield {"x": middle, "y": 0.98, "yref": "paper", "yanchor": "top", "text": phase.value, "showarrow": False}


def _borders(points: Sequence[MemoryPoint]) -> Iterator[dict[str, Any]]:
    """A line where one part of the step ends and another begins."""
    line = {"color": "#8a9099", "width": 1, "dash": "dot"}
    for before, after in pairwise(points):
        if before.phase is not after.phase:
            yield {
                "type": "line", "x0": after.event, "x1": after.event, "yref": "paper", "y0": 0, "y1": 1, "line": line
            }  # fmt: skip


def _peak(peak: MemoryPoint, divisor: float) -> Iterator[dict[str, Any]]:
    yield {
        "x": peak.event,
        "y": peak.total_bytes / divisor,
        "text": f"peak {format_bytes(peak.total_bytes)}",
        "showarrow": True,
        "arrowhead": 2,
        "arrowcolor": "#8a9099",
        "ax": 0,
        "ay": -26,
    }
