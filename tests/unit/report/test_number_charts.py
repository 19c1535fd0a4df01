import math
from dataclasses import replace

import pytest

import examined
from ampwise.formats.table import FORMATS
from ampwise.records.numerics import TensorKind
from ampwise.report.number_charts import MAX_ROWS, drawn_format, exponent_map, limits

FP16 = FORMATS["fp16"]


def maps(record, format_=FP16):
    figure = exponent_map(record, TensorKind.ACTIVATION, format_)
    return figure, *[trace for trace in figure["data"] if trace["type"] == "heatmap"]


def cells(trace, row):
    return {x: z for x, z in zip(trace["x"], trace["z"][row], strict=True) if z is not None}


def test_each_number_lies_in_the_column_of_its_exponent_and_in_or_out_of_the_format():
    record = replace(
        examined.numerics(),
        tensors=(examined.tensor("a", TensorKind.ACTIVATION, examined.histogram(1.0, 1.5, 70000.0, 2.0**-30)),),
    )
    _, held, lost = maps(record)
    assert cells(held, 0) == {0: round(math.log10(0.5), 2)}
    assert set(cells(lost, 0)) == {16, -30}


@pytest.mark.parametrize(("name", "smallest", "largest"), [("fp16", -24, 15), ("fp8_e4m3", -9, 8), ("bf16", -133, 127)])
def test_the_limits_are_the_formats(name, smallest, largest):
    assert limits(FORMATS[name]) == (smallest, largest)


def test_a_module_without_a_finite_number_keeps_its_row_and_gets_a_cross():
    figure, held, _ = maps(examined.numerics())
    assert figure["layout"]["yaxis"]["ticktext"][-1] == "head"
    assert cells(held, len(held["z"]) - 1) == {}
    cross = next(trace for trace in figure["data"] if trace.get("mode") == "markers")
    assert cross["y"] == ["head"]
    assert cross["text"] == ["head<br>0 inf, 4 NaN"]


def test_a_weight_and_a_bias_have_rows_of_their_own():
    tensors = [
        examined.tensor("fc", TensorKind.WEIGHT, examined.histogram(1.0), parameter=name) for name in ("weight", "bias")
    ]
    figure = exponent_map(replace(examined.numerics(), tensors=tuple(tensors)), TensorKind.WEIGHT, FP16)
    assert figure["layout"]["yaxis"]["ticktext"] == ["fc.weight", "fc.bias"]


def test_a_module_called_by_a_number_is_labelled_at_its_own_row():
    tensors = [examined.tensor(name, TensorKind.ACTIVATION, examined.histogram(1.0)) for name in ("1.norm", "1", "0")]
    figure, held, _ = maps(replace(examined.numerics(), tensors=tuple(tensors)))
    assert figure["layout"]["yaxis"]["tickvals"] == held["y"] == ["1.norm", "1", "0"]


def test_of_a_large_model_the_rows_nearest_to_the_limits_are_drawn_in_the_models_order():
    held = [1.0] * (MAX_ROWS + 30)
    held[7] = 60000.0
    held[-1] = 1e-7
    tensors = [
        examined.tensor(f"m{index:03}", TensorKind.ACTIVATION, examined.histogram(one))
        for index, one in enumerate(held)
    ]
    figure, *_ = maps(replace(examined.numerics(), tensors=tuple(tensors)))
    labels = figure["layout"]["yaxis"]["ticktext"]
    assert len(labels) == MAX_ROWS
    assert labels == sorted(labels)
    assert {"m007", f"m{MAX_ROWS + 29:03}"} <= set(labels)


def test_the_range_of_every_format_is_drawn_within_the_map():
    figure, held, _ = maps(examined.numerics())
    bars = [trace for trace in figure["data"] if trace.get("yaxis") == "y2"]
    assert figure["layout"]["yaxis2"]["ticktext"] == ["fp16", "bf16", "fp8_e5m2", "fp8_e4m3"]
    assert [trace["x"] for trace in bars[:2]] == [[-24.5, 15.5], [-14.5, 15.5]]
    low, high = held["x"][0], held["x"][-1]
    assert all(low - 0.5 <= end <= high + 0.5 for trace in bars for end in trace["x"])


def test_nothing_measured_is_no_figure():
    assert exponent_map(replace(examined.numerics(), tensors=()), TensorKind.ACTIVATION, FP16) is None


@pytest.mark.parametrize(
    ("precision", "name"),
    [("emulated fp16", "fp16"), ("bf16", "bf16"), ("fp32", "fp16"), ("emulated fp8_e4m3", "fp16")],
)
def test_the_runs_own_format_is_what_its_numbers_are_held_against(precision, name):
    assert drawn_format(precision).name == name
