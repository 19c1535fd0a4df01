"""Predictions of memory as one page: whether it fits, the timeline of the step, and who holds the peak."""

from collections.abc import Iterator, Sequence

from ampwise._base.units import format_bytes
from ampwise.records.estimate import Estimate
from ampwise.report.cells import Tone
from ampwise.report.estimates import assumptions, phase_words, table_rows, verdict
from ampwise.report.instrument_tables import owners_table
from ampwise.report.listing import Listing, listing
from ampwise.report.memory_charts import memory_timeline
from ampwise.report.page import Chart, render_page
from ampwise.report.words import Sentence

_TONES = {True: Tone.GOOD, False: Tone.BAD, None: Tone.PLAIN}


def render_estimates_html(
    estimates: Sequence[Estimate], *, device: str | None = None, command: Sequence[str] = ()
) -> str:
    """The page of one training's predictions.

    Args:
        estimates: At least one, of the same training in different precisions.
        device: The GPU's name, where one was named.
        command: The script and its arguments, where it was one.
    """
    verdicts = [Sentence(text=_said(one, device=device), tone=_TONES[one.fits]) for one in estimates]
    best = next((one for one in verdicts if one.tone is Tone.GOOD), verdicts[0])
    timelines = [chart for chart in map(_timeline, estimates) if chart.figure is not None]
    return render_page(
        "estimate.html.j2",
        figures={chart.name: chart.figure for chart in timelines if chart.figure is not None},
        outcome=best,
        verdicts=verdicts,
        command=command,
        table=_table(estimates),
        remedies=_remedies(estimates),
        timelines=timelines,
        owners=list(_owners(estimates)),
        assumptions=list(assumptions(estimates)),
        environment=None,
    )


def _said(estimate: Estimate, *, device: str | None) -> str:
    """The verdict, and the batch that it is of where the largest one was looked for."""
    said = verdict(estimate, device=device)
    return said if estimate.batch_size is None else f"{said}; the largest batch that fits: {estimate.batch_size}"


def _remedies(estimates: Sequence[Estimate]) -> Listing | None:
    rows = [
        (estimate.precision, remedy.what, format_bytes(remedy.saved_bytes), format_bytes(remedy.needed_bytes))
        for estimate in estimates
        for remedy in estimate.remedies
    ]
    return listing("What to change", "in|change|#saves|#needs then", rows)


def _table(estimates: Sequence[Estimate]) -> Listing | None:
    headings = "|".join(("at the peak", *(f"#{one.precision.replace('|', ' ')}" for one in estimates)))
    return listing("What it is made of", headings, table_rows(estimates))


def _timeline(estimate: Estimate) -> Chart:
    where = "" if estimate.peak_line is None else f", at {estimate.peak_line}"
    phase = "" if estimate.peak_phase is None else f" The peak is {phase_words(estimate)}{where}."
    return Chart(
        name=f"memory-{estimate.precision}",
        title=estimate.precision,
        caption=f"Live tensors over one step, by what they are for.{phase}",
        figure=memory_timeline(estimate.timeline),
    )


def _owners(estimates: Sequence[Estimate]) -> Iterator[tuple[str, Listing]]:
    for estimate in estimates:
        table = owners_table(estimate.owners, estimate.allocated_bytes)
        if table is not None:
            yield estimate.precision, table
