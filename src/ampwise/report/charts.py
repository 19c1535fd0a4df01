"""A recording's charts, as the figures plotly's own script draws.

A figure is plotly's JSON (``data`` and ``layout``); plotly's Python classes would only spell the same at ten times
the import's cost. Colours of axes and text are the page's, so that a figure follows its light and dark modes.
"""

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes
from ampwise.records.recording import Recording
from ampwise.records.run import RunRecord, StepRecord, timed_steps
from ampwise.report.switch_marks import move_points, shade

_MAX_TICKS = 8
_OUTLINE = {"width": 1, "color": "#ffffff"}
_WIDTH, _WIDTH_BELOW = 2.2, 4.4
"""The first variant's line lies below the others and is wider, so that one that runs along it hides nothing."""

Figure = dict[str, Any]

PALETTE = ("#0077bb", "#d55e00", "#009e73", "#9900ff", "#ee1155", "#8877ff")
"""The first three after Okabe and Ito; any two are told apart with any colour vision, and each stands out 3:1 from a
white and from a near-black page (a test computes both)."""

AXIS: dict[str, Any] = {"automargin": True, "zeroline": False, "fixedrange": False}
"""What every axis has."""
_LOG_FROM = 100.0
"""Range of the losses, largest over smallest, from which on their axis is logarithmic."""


def loss_curves(recording: Recording) -> Figure | None:
    """Loss over steps: one line a run and optimizer, repeats lighter; None where no step had a loss.

    A loss that is not finite is a gap with a cross at its start; a skipped step is a triangle. A diamond is where
    groups of modules moved to a safer format, a square where they came back; it is shaded while any is up.
    """
    curves = [
        (run, steps) for run in recording.runs for steps in _by_optimizer(run) if any(s.loss is not None for s in steps)
    ]
    if not curves:
        return None
    finite = [step.loss for _, steps in curves for step in steps if is_finite(step.loss)]
    top = max(finite, default=1.0)
    looks, named = _looks(recording), set[str]()
    data: list[Figure] = []
    shapes: list[Figure] = []
    for run, steps in curves:
        look = looks[run.variant]
        data.append({**_line(run, steps, look), "showlegend": run.variant not in named})
        data.extend(_marks(steps, look, top))
        if run.repeat == 0:
            data.extend(_moves(run, steps, look, top))
            shapes.extend(shade(run, look.colour) if steps[0].optimizer == 0 else ())
        named.add(run.variant)
    made = layout(x="optimizer step", y="loss", y_axis=_loss_axis(finite), height=400)
    return {"data": data, "layout": {**made, "shapes": shapes} if shapes else made}


def scale_curves(recording: Recording) -> Figure | None:
    """Loss scale over steps, on a logarithmic axis of base 2; None where no step had one.

    One stepped line a run and optimizer; a skipped step is a triangle at the scale that was too large for it.
    """
    curves = [
        (run, steps) for run in recording.runs for steps in _by_optimizer(run) if any(step.scale for step in steps)
    ]
    if not curves:
        return None
    looks, named = _looks(recording), set[str]()
    data: list[Figure] = []
    for run, steps in curves:
        look = looks[run.variant]
        data.append({**_scale_line(run, steps, look), "showlegend": run.variant not in named})
        powers = [(step, _power(step.scale)) for step in steps if step.skipped]
        skipped = [(step.index, power, f"{step.scale:g}") for step, power in powers if power is not None]
        data.extend(_points(skipped, look, "triangle-down", 9, "step %{x} skipped at loss scale %{text}"))
        named.add(run.variant)
    every = [power for _, steps in curves for step in steps if (power := _power(step.scale)) is not None]
    octaves = max(every, default=0.0) - min(every, default=0.0)
    between = max(1, math.ceil(octaves / _MAX_TICKS))  # a half would be written as a whole power
    axis = {"tickprefix": "2<sup>", "ticksuffix": "</sup>", "tickformat": "d", "tick0": 0, "dtick": between}
    return {"data": data, "layout": layout(x="optimizer step", y="loss scale", y_axis=axis, height=300)}


def step_times(recording: Recording) -> Figure | None:
    """Distribution of the step times: one box a variant, over all its runs' timed steps; None where there are none."""
    data: list[Figure] = []
    for variant, look in _looks(recording).items():
        steps = [step for run in _finished(recording, variant) for step in timed_steps(run)]
        times = [_short(step.time_ms) for step in steps if is_finite(step.time_ms)]
        if times:
            data.append(
                {
                    "type": "box",
                    "x": times,
                    "y": [look.label] * len(times),
                    "name": look.label,
                    "orientation": "h",
                    "marker": {"color": look.colour, "size": 4, "opacity": 0.45},
                    "line": {"color": look.colour, "width": 1.8},
                    "boxpoints": "all" if len(times) <= 400 else "suspectedoutliers",
                    "jitter": 0.5,
                    "pointpos": 0,
                    "hovertemplate": "%{x:.4g} ms<extra></extra>",
                    "hoveron": "points",
                }
            )
    return _bars(data, x="milliseconds a step") if data else None


def step_curves(recording: Recording) -> Figure | None:
    """Time of each step that no instrument slowed: one line a run and optimizer; None where no step was timed."""
    looks, named = _looks(recording), set[str]()
    data: list[Figure] = []
    for run in recording.runs:
        for steps in _by_optimizer(run):
            if not any(is_finite(step.time_ms) for step in steps):
                continue
            line = _line(run, steps, looks[run.variant])
            line["y"] = [_short(step.time_ms) if is_finite(step.time_ms) else None for step in steps]
            line["hovertemplate"] = f"step %{{x}}: %{{y:.4g}} ms{_which(run, steps[0])}"
            data.append({**line, "mode": "lines+markers", "showlegend": run.variant not in named})
            named.add(run.variant)
    axis = {"rangemode": "tozero"}
    return {"data": data, "layout": layout(x="optimizer step", y="ms", y_axis=axis, height=300)} if data else None


def peak_memory(recording: Recording) -> Figure | None:
    """Largest peak of each variant's runs, a bar each; None where none was measured."""
    peaks = {
        look: peak
        for variant, look in _looks(recording).items()
        if (peak := max((_peak(run) for run in _finished(recording, variant)), default=0)) > 0
    }
    if not peaks:
        return None
    divisor, unit = (2**30, "GiB") if max(peaks.values()) >= 2**30 else (2**20, "MiB")
    bar = {
        "type": "bar",
        "x": [_short(peak / divisor) for peak in peaks.values()],
        "y": [look.label for look in peaks],
        "orientation": "h",
        "marker": {"color": [look.colour for look in peaks]},
        "text": [format_bytes(peak) for peak in peaks.values()],
        "textposition": "auto",
        "hovertemplate": "%{text}<extra></extra>",
        "width": 0.55,
    }
    return _bars([bar], x=f"{unit} at the peak")


def has_marks(recording: Recording) -> tuple[bool, bool]:
    """Whether the loss chart shows crosses (losses not finite) and triangles (skipped steps)."""
    steps = [step for run in recording.runs for step in run.steps]
    return any(s.loss is not None and not math.isfinite(s.loss) for s in steps), any(s.skipped for s in steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """How a variant is drawn."""

    label: str
    """Its name as plotly shows it: plotly's text knows tags and entities, which a name must not bring."""
    colour: str
    width: float


def _looks(recording: Recording) -> dict[str, _Look]:
    """A look for each variant, in the table's order; no two labels are equal."""
    rows = recording.comparison.variants if recording.comparison else ()
    variants = dict.fromkeys([*(row.variant for row in rows), *(run.variant for run in recording.runs)])
    looks: dict[str, _Look] = {}
    for place, variant in enumerate(variants):
        label = html.escape(inert_line(variant, max_length=28), quote=False)
        if any(look.label == label for look in looks.values()):
            label = f"{label} ({place + 1})"
        width = _WIDTH_BELOW if place == 0 else _WIDTH
        looks[variant] = _Look(label=label, colour=PALETTE[place % len(PALETTE)], width=width)
    return looks


def _finished(recording: Recording, variant: str) -> list[RunRecord]:
    """The runs that the table's figures come from."""
    return [run for run in recording.runs if run.variant == variant and run.has_finished]


def _by_optimizer(run: RunRecord) -> list[list[StepRecord]]:
    """A run's steps, one list an optimizer: the losses of a GAN's two are no one curve."""
    optimizers = dict.fromkeys(step.optimizer for step in run.steps)
    return [[step for step in run.steps if step.optimizer == optimizer] for optimizer in optimizers]


def _line(run: RunRecord, steps: Sequence[StepRecord], look: _Look) -> Figure:
    is_first = run.repeat == 0
    return {
        "type": "scatter",
        "mode": "lines" if len(steps) > 12 else "lines+markers",
        "name": look.label,
        "legendgroup": look.label,
        "x": [step.index for step in steps],
        "y": [_short(step.loss) if is_finite(step.loss) else None for step in steps],
        "connectgaps": False,
        "line": {
            "color": look.colour,
            "width": look.width if is_first else look.width / 2,
            "dash": "solid" if steps[0].optimizer == 0 else "dot",
        },
        "opacity": 1.0 if is_first else 0.5,
        "hovertemplate": f"step %{{x}}: loss %{{y:.5g}}{_which(run, steps[0])}",
    }


def _scale_line(run: RunRecord, steps: Sequence[StepRecord], look: _Look) -> Figure:
    line = _line(run, steps, look)
    line["mode"] = "lines"
    line["line"]["shape"] = "hv"
    line["y"] = [_power(step.scale) for step in steps]
    line["text"] = [f"{step.scale:g}" if step.scale else None for step in steps]
    line["hovertemplate"] = f"step %{{x}}: loss scale %{{text}}{_which(run, steps[0])}"
    return line


def _power(scale: float | None) -> float | None:
    """Of two; None where there is no scale, or one that no axis shows."""
    return math.log2(scale) if scale is not None and 0 < scale < math.inf else None


def _which(run: RunRecord, step: StepRecord) -> str:
    """What the hover adds where a variant has several lines."""
    repeat = f", run {run.repeat + 1}" if run.repeat else ""
    return repeat + (f", optimizer {step.optimizer + 1}" if step.optimizer else "")


def _marks(steps: Sequence[StepRecord], look: _Look, top: float) -> Iterator[Figure]:
    yield from _points(list(_gaps(steps, top)), look, "x", 12, "loss is %{text} from step %{x} on")
    skipped = list(_skips(steps, top))
    yield from _points(skipped, look, "triangle-down", 9, "step %{x} skipped: gradients not finite")


def _moves(run: RunRecord, steps: Sequence[StepRecord], look: _Look, top: float) -> Iterator[Figure]:
    for points, symbol in zip(move_points(run), ("diamond", "square"), strict=True):
        placed = [(step, _height(steps, step, top), text) for step, text in points]
        yield from _points(placed, look, symbol, 13, "from step %{x} on: %{text}")


def _height(steps: Iterable[StepRecord], step: int, top: float) -> float:
    """The last finite loss up to a step."""
    losses = [one.loss for one in steps if one.index <= step and is_finite(one.loss)]
    return losses[-1] if losses else top


def _points(
    points: Sequence[tuple[int, float, str]], look: _Look, symbol: str, size: int, template: str
) -> Iterator[Figure]:
    """One trace of marks at (x, y) with their texts; none where there are no points."""
    if points:
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": look.label,
            "legendgroup": look.label,
            "showlegend": False,
            "x": [x for x, _, _ in points],
            "y": [_short(y) for _, y, _ in points],
            "text": [text for _, _, text in points],
            "marker": {"symbol": symbol, "size": size, "color": look.colour, "line": _OUTLINE},
            "hovertemplate": template,
        }


def _gaps(steps: Iterable[StepRecord], top: float) -> Iterator[tuple[int, float, str]]:
    """Where each stretch of losses that are not finite begins, at the height of the last finite loss."""
    height, inside = top, False
    for step in steps:
        if step.loss is None:
            continue
        if math.isfinite(step.loss):
            height, inside = step.loss, False
        elif not inside:
            inside = True
            yield step.index, height, str(step.loss)


def _skips(steps: Iterable[StepRecord], top: float) -> Iterator[tuple[int, float, str]]:
    height = top
    for step in steps:
        height = step.loss if is_finite(step.loss) else height
        if step.skipped:
            yield step.index, height, ""


def _loss_axis(finite: Sequence[float]) -> Figure:
    is_log = bool(finite) and min(finite) > 0 and max(finite) / min(finite) > _LOG_FROM
    return {"type": "log", "dtick": 1} if is_log else {"type": "linear"}


def _bars(data: list[Figure], *, x: str) -> Figure:
    """Bars or boxes that lie, the first variant on top, from zero on."""
    names = len({name for trace in data for name in trace["y"]})
    made = layout(x=x, y="", y_axis={"autorange": "reversed", "type": "category"}, height=130 + 56 * names)
    made["xaxis"]["rangemode"] = "tozero"
    made["margin"]["t"] = 30
    made["yaxis"].update(ticks="outside", ticklen=6, tickcolor="rgba(0,0,0,0)")
    return {"data": data, "layout": {**made, "showlegend": False}}


def layout(*, x: str, y: str, y_axis: Figure, height: int) -> Figure:
    """The frame of a figure: its axes' titles, its height, and colours that the page's own show through."""
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13},
        "xaxis": {**AXIS, "title": {"text": x, "standoff": 12}},
        "yaxis": {**AXIS, "title": {"text": y, "standoff": 12}, **y_axis},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
    }


def _peak(run: RunRecord) -> int:
    return (run.peak_allocated_bytes if run.peak_tensor_bytes is None else run.peak_tensor_bytes) or 0


def is_finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a number, and it is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def _short(value: float | None) -> float | None:
    """Six digits: more than a screen can show."""
    return None if value is None else float(f"{value:.6g}")
