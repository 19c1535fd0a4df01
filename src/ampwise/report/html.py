"""A recording as one HTML file that needs nothing else: no network, no other file."""

import base64
import hashlib
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ampwise._base.text import inert
from ampwise._base.version import __version__
from ampwise.records.recording import Recording
from ampwise.records.run import RunRecord
from ampwise.report import charts
from ampwise.report.cells import NOTHING, figure, rows
from ampwise.report.words import ending, equal_for_all, headline, how_timed, notes, projection, ratios_mean, sentences

GENERATOR = "ampwise report"
"""Stands in the page's head, so that a report can be told from somebody's own page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    """A figure with its heading and what a reader should know of it."""

    name: str
    title: str
    caption: str
    figure: charts.Figure | None


def render_html(recording: Recording) -> str:
    """The report as one page: the outcome in words, the table, the charts, the machine, the script's errors.

    Every text that a user or a script chose is escaped and stripped of control characters; the page's policy
    forbids the network and any script but its own two, by their hashes.
    """
    scripts = (_newlines(get_plotlyjs()), _newlines(_template("report.js")))
    drawn = [chart for chart in _charts(recording) if chart.figure is not None]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
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
            figures={chart.name: chart.figure for chart in drawn},
            runs=[_run(run) for run in recording.runs],
            failures=[run for run in recording.runs if run.failure is not None],
            notes=notes(recording),
            how_timed=how_timed(),
            policy=_policy(scripts),
            plotly=Markup(scripts[0]),  # noqa: S704  # plotly's own file
            script=Markup(scripts[1]),  # noqa: S704  # our own file
            style=Markup(_template("report.css")),  # noqa: S704  # our own file
            generator=f"{GENERATOR} {__version__}",
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ampwise.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "sort_keys": False}
    return environment


def _finalize(value: Any) -> Any:
    """Every plain string is made inert, then escaped; what is marked safe is ours."""
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _template(name: str) -> str:
    return (resources.files("ampwise.report") / "templates" / name).read_text("utf-8")


def _newlines(script: str) -> str:
    """As a browser reads them, for the hash is over what it reads."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _policy(scripts: tuple[str, ...]) -> str:
    """The content security policy: nothing from anywhere, and only these scripts."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _charts(recording: Recording) -> tuple[_Chart, ...]:
    crosses, triangles = charts.has_marks(recording)
    lines = {
        "One line a run; repeats are lighter.": True,
        "A cross marks where a loss stopped being finite; the line is broken until it is again.": crosses,
        "A triangle marks a step that was skipped because its gradients were not finite.": triangles,
    }
    return (
        _Chart(
            name="loss",
            title="Loss",
            caption=" ".join(text for text, is_shown in lines.items() if is_shown),
            figure=charts.loss_curves(recording),
        ),
        _Chart(
            name="scale",
            title="Loss scale",
            caption="What the loss was multiplied by. A triangle marks a step that was skipped at that scale.",
            figure=charts.scale_curves(recording),
        ),
        _Chart(
            name="time",
            title="Step time",
            caption="Every step of every run after its warm-up; the box spans the middle half, its line is the median.",
            figure=charts.step_times(recording),
        ),
        _Chart(
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
