"""A recording as one HTML file that needs nothing else: no network, no other file."""

from dataclasses import asdict
from typing import Any

from ampwise.records.diagnosis import Diagnosis
from ampwise.records.recording import Recording
from ampwise.records.run import RunRecord
from ampwise.report import charts
from ampwise.report.cells import NOTHING, figure, rows
from ampwise.report.examined import render_examined
from ampwise.report.line_charts import loss_chart, scale_chart
from ampwise.report.page import Chart, render_page
from ampwise.report.ranks import ranks_table
from ampwise.report.switch_marks import switches_table
from ampwise.report.words import ending, equal_for_all, headline, how_timed, notes, projection, ratios_mean, sentences


def render_html(recording: Recording, diagnosis: Diagnosis | None = None) -> str:
    """The report as one page: the outcome in words, what to do, the tables, the charts, the machine.

    Args:
        recording: Of a comparison, or of an examination.
        diagnosis: What was made of an examination; without one the page is a comparison's.
    """
    return _render_compared(recording) if diagnosis is None else render_examined(recording, diagnosis)


def _render_compared(recording: Recording) -> str:
    drawn = [chart for chart in _charts(recording) if chart.figure is not None]
    return render_page(
        "compared.html.j2",
        figures={chart.name: chart.figure for chart in drawn if chart.figure is not None},
        recording=recording,
        comparison=recording.comparison,
        environment=asdict(recording.environment),
        outcome=headline(recording),
        sentences=sentences(recording.comparison) if recording.comparison else (),
        projection=projection(recording.comparison) if recording.comparison else None,
        rows=rows(recording.comparison) if recording.comparison else (),
        has_scale=any(run.final_scale is not None for run in recording.runs),
        ratios_mean=ratios_mean(recording.comparison) if recording.comparison else None,
        equal=equal_for_all(recording),
        charts=drawn,
        runs=[_run(run) for run in recording.runs],
        failures=[run for run in recording.runs if run.failure is not None],
        moves=switches_table([run for run in recording.runs if run.repeat == 0]),
        ranks=ranks_table([run for run in recording.runs if run.repeat == 0]),
        notes=notes(recording),
        how_timed=how_timed(recording.comparison),
    )


def _charts(recording: Recording) -> tuple[Chart, ...]:
    return (
        loss_chart(recording),
        scale_chart(recording),
        Chart(
            name="time",
            title="Step time",
            caption="Every step of every run after its warm-up; the box spans the middle half, its line is the median.",
            figure=charts.step_times(recording),
        ),
        Chart(
            name="memory",
            title="Peak memory",
            caption="The largest sum of live tensors during a step, parameters and optimizer state included.",
            figure=charts.peak_memory(recording),
        ),
    )


def _run(run: RunRecord) -> dict[str, Any]:
    """A line of the table of runs."""
    return {
        "variant": run.variant,
        "repeat": run.repeat + 1,
        "precision": run.precision,
        "reason": run.reason,
        "steps": len(run.steps),
        "skipped": run.num_skipped,
        "scale": figure(run.final_scale, "{:g}".format),
        "end": ending(run.end),
        "left_alone": run.left_alone or NOTHING,
    }
