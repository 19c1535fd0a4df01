"""Two recordings side by side, at a terminal and as a page."""

import textwrap
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampwise._base.text import inert_line
from ampwise.report import charts
from ampwise.report.cells import Tone
from ampwise.report.line_charts import loss_chart, scale_chart
from ampwise.report.page import Chart, render_page
from ampwise.report.side_by_side import Pair, Side, SideBySide, finding_line, groups, outcome, overlaid, verdict_of

_STYLES = {Tone.GOOD: "green", Tone.CAUTION: "yellow", Tone.BAD: "red", Tone.PLAIN: ""}


def render_side_by_side(both: SideBySide, console: Console) -> None:
    """Print what changed: in a sentence, as a table for each pair of runs, and finding by finding."""
    console.print(Text(outcome(both), style="bold"))
    for side in (both.before, both.after):
        if side.diagnosis is not None:
            console.print(Text(f"{inert_line(side.name, max_length=60)}: {verdict_of(side)}"))
    for pair in both.pairs:
        console.print(_table(both, pair))
    for title, findings, tone in groups(both):
        console.print(Text(f"{title}:", style="bold"))
        for finding in findings:
            line = textwrap.fill(
                f"- {finding_line(finding)}",
                console.width,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            console.print(Text(line, style=_STYLES[tone]), soft_wrap=True)


def render_side_by_side_html(both: SideBySide) -> str:
    """The same as one page, with the losses and the scales laid over each other."""
    runs = overlaid(both)
    steps = Chart(
        name="time",
        title="Step time",
        caption="Every step that no instrument slowed; the box spans the middle half, its line is the median.",
        figure=charts.step_times(runs),
    )
    drawn = [chart for chart in (loss_chart(runs), scale_chart(runs), steps) if chart.figure is not None]
    return render_page(
        "side_by_side.html.j2",
        figures={chart.name: chart.figure for chart in drawn if chart.figure is not None},
        outcome=outcome(both),
        before=_side(both.before),
        after=_side(both.after),
        pairs=both.pairs,
        groups=[(title, [finding_line(one) for one in ones], tone) for title, ones, tone in groups(both)],
        charts=drawn,
        environment=asdict(both.after.recording.environment),
    )


def _side(side: Side) -> dict[str, str]:
    return {
        "name": side.name,
        "command": " ".join(side.recording.command),
        "created": side.recording.created,
        "verdict": verdict_of(side),
    }


def _table(both: SideBySide, pair: Pair) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(Text(inert_line(pair.name, max_length=30)) if len(both.pairs) > 1 else "")
    for side in (both.before, both.after):
        table.add_column(Text(inert_line(side.name, max_length=40)), justify="right", overflow="fold")
    table.add_column("change", justify="right")
    for row in pair.rows:
        table.add_row(row.name, Text(row.before), Text(row.after), Text(row.change, style=_STYLES[row.tone]))
    return table
