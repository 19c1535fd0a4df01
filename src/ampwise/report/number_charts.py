"""How large a run's numbers are, module by module, beside what the formats hold."""

import html
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ampwise._base.text import inert_line
from ampwise.formats.spec import FloatFormat
from ampwise.formats.table import FORMATS
from ampwise.records.numerics import BINS_AN_OCTAVE, MagnitudeHistogram, NumericsRecord, TensorKind, TensorStatistics
from ampwise.report.charts import AXIS, Figure, layout

MAX_ROWS: Final = 120
"""Rows that a screen can be scrolled through; of more, those that come nearest to the format's limits are drawn."""

_DRAWN: Final = ("fp16", "bf16", "fp8_e5m2", "fp8_e4m3")
_HELD, _LOST, _RANGE, _BAD = "#0077bb", "#d55e00", "#7d8490", "#ee1155"
_ROW_PX, _STRIP_PX, _REST_PX = 15, 88, 100
_BIAS: Final = 127
_LEAST: Final = -5.0
"""The faintest colour: one number in 10^5."""


def exponent_map(record: NumericsRecord, kind: TensorKind, format_: FloatFormat) -> Figure | None:
    """Which exponents the numbers of each module have; None where no tensor of that kind was measured.

    A row a module, in the model's order; the darker a cell, the more of the row's numbers. What lies outside of
    ``format_`` is of another colour. Above the map stands the range of every format.
    """
    rows = _rows(record, kind)
    labels = _most_extreme(rows, format_)
    if not labels:
        return None
    shown = [_by_exponent(rows[label]) for label in labels]
    low, high = _exponents(shown, format_)
    columns = list(range(low, high + 1))
    smallest, largest = limits(format_)
    held = [{x: share for x, share in row.items() if smallest <= x <= largest} for row in shown]
    lost = [{x: share for x, share in row.items() if not smallest <= x <= largest} for row in shown]
    names = [html.escape(inert_line(label, max_length=200), quote=False) for label in labels]
    data = [
        _cells(columns, held, names, colour=_HELD, said=""),
        _cells(columns, lost, names, colour=_LOST, said=f"<br>outside of {format_.name}"),
        *_ranges(low, high),
        *_non_finite([rows[label] for label in labels], names, x=high),
    ]
    return {"data": data, "layout": _map_layout(labels, names, columns, format_)}


def drawn_format(precision: str) -> FloatFormat:
    """The format that a run's numbers are held against: its own low one, else fp16, which has the least room."""
    return next((FORMATS[name] for name in ("fp16", "bf16") if name in precision), FORMATS["fp16"])


def limits(format_: FloatFormat) -> tuple[int, int]:
    """The exponents of the smallest and the largest number a format holds."""
    return math.frexp(format_.smallest_subnormal)[1] - 1, math.frexp(format_.max)[1] - 1


def _rows(record: NumericsRecord, kind: TensorKind) -> dict[str, MagnitudeHistogram]:
    """The histogram of each row that has something to show."""
    found: dict[str, MagnitudeHistogram] = {}
    for tensor in record.tensors:
        if tensor.kind is kind:
            label = _label(tensor)
            found[label] = found[label].merged(tensor.histogram) if label in found else tensor.histogram
    return {label: one for label, one in found.items() if one.num_nonzero or one.num_infinite or one.num_nan}


def _label(tensor: TensorStatistics) -> str:
    return ".".join(part for part in (tensor.module or "(model)", tensor.parameter) if part)


def _by_exponent(histogram: MagnitudeHistogram) -> dict[int, float]:
    """Which share of the numbers that are finite and not zero has which exponent."""
    counts: dict[int, int] = defaultdict(int)
    for place, count in histogram.bins():
        counts[max(place // BINS_AN_OCTAVE, 1) - _BIAS] += count
    return {exponent: count / histogram.num_nonzero for exponent, count in counts.items()}


def _most_extreme(rows: dict[str, MagnitudeHistogram], format_: FloatFormat) -> list[str]:
    """The rows to draw, in the model's order."""
    smallest, largest = limits(format_)

    def room(label: str) -> float:
        row = rows[label]
        exponents = _by_exponent(row)
        if row.num_infinite or row.num_nan:
            return -math.inf
        return min(largest - max(exponents), min(exponents) - smallest)

    chosen = set(sorted(rows, key=room)[:MAX_ROWS])
    return [label for label in rows if label in chosen]


def _exponents(shown: Sequence[dict[int, float]], format_: FloatFormat) -> tuple[int, int]:
    smallest, largest = limits(format_) if format_.exponent_bits < 8 else limits(FORMATS["fp16"])
    every = [exponent for row in shown for exponent in row]
    return min([smallest, *every]) - 3, max([largest, *every]) + 3


def _log(share: float | None) -> float | None:
    return None if not share else round(max(math.log10(share), _LEAST), 2)


def _percent(share: float | None) -> str:
    return "" if not share else f"{share:.3g}" if share < 1e-4 else f"{share:.2%}"


def _cells(columns: Sequence[int], rows: Sequence[Mapping[int, float]], names: Sequence[str], **look: str) -> Figure:
    colour, said = look["colour"], look["said"]
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return {
        "type": "heatmap",
        "x": list(columns),
        "y": list(names),
        "z": [[_log(row.get(x)) for x in columns] for row in rows],
        "text": [[_percent(row.get(x)) for x in columns] for row in rows],
        "hoverongaps": False,
        "hovertemplate": f"%{{y}}<br>2<sup>%{{x}}</sup>: %{{text}} of its numbers{said}<extra></extra>",
        "colorscale": [[0, f"rgba({red},{green},{blue},0.12)"], [1, f"rgba({red},{green},{blue},1)"]],
        "zmin": _LEAST,
        "zmax": 0,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
    }


def _ranges(low: int, high: int) -> list[Figure]:
    """A bar for each format above the map: thick where its numbers have all their digits, thin where they lose some."""
    data: list[Figure] = []
    for place, name in enumerate(_DRAWN):
        format_ = FORMATS[name]
        smallest, largest = limits(format_)
        for first, width in ((smallest, 4), (format_.min_exponent, 10)):
            ends = [max(first, low) - 0.5, min(largest, high) + 0.5]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": ends,
                    "y": [place, place],
                    "yaxis": "y2",
                    "line": {"color": _RANGE, "width": width},
                    "showlegend": False,
                    "hovertemplate": f"{name}: 2<sup>{format_.min_exponent}</sup> to {format_.max:.4g}; with fewer "
                    f"digits from 2<sup>{smallest}</sup><extra></extra>",
                }
            )
    return data


def _non_finite(rows: Sequence[MagnitudeHistogram], names: Sequence[str], *, x: int) -> Iterator[Figure]:
    """A cross at the right of each row that holds infinities or NaN."""
    bad = [place for place, row in enumerate(rows) if row.num_infinite or row.num_nan]
    if bad:
        yield {
            "type": "scatter",
            "mode": "markers",
            "x": [x] * len(bad),
            "y": [names[one] for one in bad],
            "text": [f"{names[one]}<br>{rows[one].num_infinite} inf, {rows[one].num_nan} NaN" for one in bad],
            "marker": {"symbol": "x", "size": 9, "color": _BAD},
            "showlegend": False,
            "hovertemplate": "%{text}<extra></extra>",
        }


def _map_layout(labels: Sequence[str], names: Sequence[str], columns: Sequence[int], format_: FloatFormat) -> Figure:
    body = _ROW_PX * max(len(labels), 3)
    total = body + _STRIP_PX
    split = body / total
    made = layout(x="power of two", y="", y_axis={}, height=total + _REST_PX)
    smallest, largest = limits(format_)
    made["xaxis"].update(
        range=[columns[0] - 0.5, columns[-1] + 0.5], tickprefix="2<sup>", ticksuffix="</sup>", nticks=9
    )
    made["yaxis"] = {
        **AXIS,
        "domain": [0, split - 8 / total],
        "type": "category",
        "range": [len(labels) - 0.5, -0.5],
        "tickvals": list(names),  # plotly takes a number for the row of that name before it takes it for a place
        "ticktext": [html.escape(_cut(label), quote=False) for label in labels],
        "tickfont": {"size": 10},
        "showgrid": False,
    }
    made["yaxis2"] = {
        **AXIS,
        "domain": [split, 1],
        "range": [-0.6, len(_DRAWN) - 0.4],
        "tickvals": list(range(len(_DRAWN))),
        "ticktext": list(_DRAWN),
        "tickfont": {"size": 11},
        "showgrid": False,
        "fixedrange": True,
    }
    made["shapes"] = [_limit(x, split) for x in (smallest - 0.5, largest + 0.5) if columns[0] <= x <= columns[-1]]
    made["showlegend"] = False
    return made


def _limit(x: float, split: float) -> dict[str, Any]:
    line = {"color": _LOST, "width": 1.5, "dash": "dash"}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": split, "line": line}


def _cut(label: str) -> str:
    """Its end, which tells it from its neighbours."""
    line = inert_line(label, max_length=400)
    return line if len(line) <= 26 else f"…{line[-25:]}"
