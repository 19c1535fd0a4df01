"""Where precision moved is drawn over the loss of its run, and told in words that cannot be taken for markup."""

import plotly.graph_objects

from ampwise.doctor.diagnose import diagnose
from ampwise.report import charts
from ampwise.report.html import render_html
from ampwise.report.switch_marks import raised_spans, switches_table


def marks(figure, symbol):
    return [one for one in figure["data"] if one["mode"] == "markers" and one["marker"]["symbol"] == symbol]


def test_moves_of_one_cause_are_one_mark_on_the_curve(made):
    recording = made.scheduled()
    figure = charts.loss_curves(recording)
    plotly.graph_objects.Figure(figure)
    (up,), (down,) = marks(figure, "diamond"), marks(figure, "square")
    losses = {one.index: one.loss for one in recording.runs[0].steps}
    assert up["x"] == [20, 30, 50]
    assert up["y"] == [float(f"{losses[step]:.6g}") for step in (20, 30, 50)]
    assert up["text"] == [
        "blocks.0, blocks.1 up to fp32: loss is nan",
        "head up to fp32: &lt;b&gt;loud&lt;/b&gt;",
        "head up to fp32: loss is nan",
    ]
    assert down["x"] == [35, 40, 42]
    assert down["text"][0] == "blocks.0 back to fp16: quiet for 5 steps"
    assert up["marker"]["color"] == figure["data"][0]["line"]["color"]


def test_it_is_shaded_while_any_group_is_up_and_to_the_end_of_the_run(made):
    recording = made.scheduled()
    assert list(raised_spans(recording.runs[0])) == [(19.5, 41.5), (49.5, 59.5)]
    shapes = charts.loss_curves(recording)["layout"]["shapes"]
    assert [(one["x0"], one["x1"], one["layer"]) for one in shapes] == [(19.5, 41.5, "below"), (49.5, 59.5, "below")]
    assert "shapes" not in charts.loss_curves(made.normal())["layout"]


def test_the_page_has_the_table_and_says_what_the_marks_are(made):
    page = render_html(made.scheduled())
    assert "Precision that moved" in page
    assert "A diamond marks where modules moved to a safer format" in page
    assert "&lt;b&gt;loud&lt;/b&gt;" in page
    assert "<b>loud</b>" not in page
    plain = render_html(made.normal())
    assert "Precision that moved" not in plain
    assert "A diamond" not in plain
    assert "Precision that moved" in render_html(made.scheduled(), diagnose(made.scheduled()))


def test_the_table_names_runs_only_where_several_moved(made):
    first, second, *_ = made.scheduled().runs
    table = switches_table([first, second])
    assert [one.heading for one in table.columns] == ["from step", "modules", "from", "to", "because"]
    assert table.rows[0] == ("20", "blocks.0", "fp16", "fp32", "loss is nan")
    both = switches_table([first, first])
    assert [one.heading for one in both.columns][:2] == ["run", "from step"]
    assert switches_table([second]) is None
