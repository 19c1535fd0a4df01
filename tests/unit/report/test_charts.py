import dataclasses
import itertools
import json
import math

import plotly.graph_objects
import pytest

from ampwise.records.run import RunEnd
from ampwise.report import charts

FIGURES = (charts.loss_curves, charts.scale_curves, charts.step_times, charts.peak_memory)


@pytest.mark.parametrize("draw", FIGURES)
def test_a_figure_is_one_plotly_accepts(any_recording, draw):
    figure = draw(any_recording)
    if figure is not None:
        plotly.graph_objects.Figure(figure)  # its classes refuse an attribute that plotly's script does not know
        json.dumps(figure, allow_nan=False)


@pytest.mark.parametrize("draw", FIGURES)
def test_nothing_measured_is_no_figure(made, draw):
    assert draw(made.empty()) is None


def _lines(figure):
    return [trace for trace in figure["data"] if trace["mode"] != "markers"]


def _marks(figure, symbol):
    return [trace for trace in figure["data"] if trace["mode"] == "markers" and trace["marker"]["symbol"] == symbol]


def test_each_run_is_a_line_and_each_variant_is_named_once(made):
    lines = _lines(charts.loss_curves(made.repeated()))
    assert len(lines) == 24
    named = [line["name"] for line in lines if line["showlegend"]]
    assert named == ["fp32", "bf16", "fp16", "bf16+compile"]


def test_repeats_are_lighter(made):
    first, _, repeat, _ = _lines(charts.loss_curves(made.normal()))
    assert repeat["opacity"] < first["opacity"]
    assert repeat["line"]["width"] < first["line"]["width"]
    assert repeat["line"]["color"] == first["line"]["color"]


def test_a_loss_that_is_not_finite_is_a_gap_with_a_cross_where_it_begins(made):
    figure = charts.loss_curves(made.diverged())
    line = _lines(figure)[1]
    assert [x for x, y in zip(line["x"], line["y"], strict=True) if y is None] == [*range(30, 45), *range(51, 60)]
    assert line["connectgaps"] is False
    (cross,) = _marks(figure, "x")
    assert (cross["x"], cross["text"]) == ([30, 51], ["nan", "nan"])
    assert cross["y"][0] == line["y"][29]


def test_a_run_that_never_had_a_finite_loss_still_has_its_cross(made):
    run = made.run("fp16", "fp16", steps=made.steps([math.inf] * 5, 1.0, 0))
    figure = charts.loss_curves(made.recording([run], []))
    (cross,) = _marks(figure, "x")
    assert (cross["x"], cross["y"], cross["text"]) == ([0], [1.0], ["inf"])


def test_a_skipped_step_is_a_triangle(made):
    (triangle,) = _marks(charts.loss_curves(made.skipping()), "triangle-down")
    assert triangle["x"] == [0, 1, 2, 24]
    assert charts.has_marks(made.skipping()) == (False, True)
    assert charts.has_marks(made.diverged()) == (True, True)
    assert charts.has_marks(made.normal()) == (False, False)


def test_the_scale_is_a_stepped_line_with_a_triangle_where_it_was_too_large(made):
    line, triangle = charts.scale_curves(made.skipping())["data"]
    assert (line["name"], line["line"]["shape"]) == ("fp16", "hv")
    assert line["y"][:5] == [24, 23, 22, 21, 21]
    assert line["text"][0] == "1.67772e+07"
    assert (triangle["x"], triangle["y"]) == ([0, 1, 2, 24], [24, 23, 22, 21])
    assert triangle["marker"]["symbol"] == "triangle-down"


@pytest.mark.parametrize(("lowest", "between"), [(15.0, 1), (8.0, 1), (-10.0, 4)])
def test_the_scales_axis_is_marked_at_whole_powers(made, lowest, between):
    steps = made.steps([1.0, 1.0], 1.0, 0)
    steps = tuple(dataclasses.replace(one, scale=2.0**power) for one, power in zip(steps, (16.0, lowest), strict=True))
    axis = charts.scale_curves(made.recording([made.run("fp16", "fp16", steps=steps)], []))["layout"]["yaxis"]
    assert (axis["tick0"], axis["dtick"]) == (0, between)


@pytest.mark.parametrize("scale", [math.inf, math.nan, -1.0])
def test_a_scale_that_no_axis_shows_is_a_gap(made, scale):
    steps = made.steps([1.0, 1.0], 1.0, 0)
    steps = tuple(
        dataclasses.replace(one, scale=own, skipped=True) for one, own in zip(steps, (16.0, scale), strict=True)
    )
    line, triangle = charts.scale_curves(made.recording([made.run("fp16", "fp16", steps=steps)], []))["data"]
    assert (line["y"], list(triangle["y"])) == ([4.0, None], [4.0])


def test_runs_without_a_loss_scale_have_no_chart_of_it(made):
    runs = [run for run in made.normal().runs if run.final_scale is None]
    assert charts.scale_curves(made.recording(runs, [])) is None


def test_two_optimizers_are_two_lines(made):
    steps = made.steps([1.0, 5.0, 1.1, 5.1], 1.0, 0)
    steps = tuple(dataclasses.replace(step, optimizer=step.index % 2) for step in steps)
    lines = _lines(charts.loss_curves(made.recording([made.run("fp32", "fp32", steps=steps)], [])))
    assert [line["y"] for line in lines] == [[1.0, 1.1], [5.0, 5.1]]
    assert [line["line"]["dash"] for line in lines] == ["solid", "dot"]


@pytest.mark.parametrize(
    ("losses", "kind"),
    [([5.0, 1.0], "linear"), ([500.0, 1.0], "log"), ([500.0, -1.0], "linear"), ([9.0, 0.0], "linear")],
)
def test_losses_far_apart_are_drawn_on_a_logarithmic_axis(made, losses, kind):
    recording = made.recording([made.run("fp32", "fp32", steps=made.steps(losses, 1.0, 0))], [])
    assert charts.loss_curves(recording)["layout"]["yaxis"]["type"] == kind


def test_step_times_after_the_warm_up_are_pooled_over_a_variants_runs(made):
    boxes = charts.step_times(made.repeated())["data"]
    assert [len(box["x"]) for box in boxes] == [6 * 54] * 4


def test_a_run_that_failed_on_the_way_is_in_no_box_and_no_bar(made):
    broken = made.run("fp32", "fp32", time_ms=9000.0, repeat=1, end=RunEnd.FAILED, peak_tensor_bytes=2**40)
    recording = made.recording([made.FP32, broken], [])
    assert max(charts.step_times(recording)["data"][0]["x"]) < 1000
    assert charts.peak_memory(recording)["data"][0]["text"] == ["1.77 GiB"]
    assert len(charts.loss_curves(recording)["data"]) == 2


def test_memory_is_the_largest_peak_in_readable_units(made):
    (bar,) = charts.peak_memory(made.normal())["data"]
    assert bar["text"] == ["1.77 GiB", "1.09 GiB"]
    assert bar["x"] == pytest.approx([1.7695, 1.08965], rel=1e-4)


def test_names_are_plain_text_to_plotly_and_never_alike(made):
    figure = charts.step_times(made.hostile())
    name = figure["data"][1]["name"]
    assert name.startswith("&lt;img src=x")
    runs = [made.run(f"{'x' * 40}{place}", "fp32") for place in range(3)]
    names = [box["name"] for box in charts.step_times(made.recording(runs, []))["data"]]
    assert len(set(names)) == 3


def _linear(colour):
    """sRGB as linear light, 0 to 1."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def _luminance(colour):
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), _linear(colour), strict=True))


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#1a1d21"])
@pytest.mark.parametrize("colour", charts.PALETTE)
def test_every_colour_stands_out_from_a_light_and_a_dark_page(colour, page):
    assert _contrast(colour, page) >= 3


# Machado, Oliveira and Fernandes (2009), severity 1, in linear light.
VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def _lab(rgb):
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * c for a, c in zip(row, rgb, strict=True)) for row in to_xyz]
    x, y, z = (math.cbrt(max(v, 0) / white) for v, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_colours_are_told_apart_with_any_colour_vision(vision):
    seen = [
        _lab([sum(a * c for a, c in zip(row, _linear(colour), strict=True)) for row in VISIONS[vision]])
        for colour in charts.PALETTE
    ]
    assert min(math.dist(one, other) for one, other in itertools.combinations(seen, 2)) > 20
