"""An examination as a page: the verdict and what to do first, then what the instruments saw."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final, assert_never

from ampwise._base.text import inert_line
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.finding import Confidence, Finding, Severity
from ampwise.records.numerics import TensorKind
from ampwise.records.recording import Recording
from ampwise.records.run import Role, RunRecord
from ampwise.report import charts
from ampwise.report.casts import casts_table
from ampwise.report.cells import NOTHING, Tone, figure, loss
from ampwise.report.diagnosis import PURPOSES, examined, how_to_use, not_seen, verdict, whole_plan
from ampwise.report.instrument_tables import against_fp32_table, origins_table, owners_table, tables_of_speed
from ampwise.report.line_charts import loss_chart, scale_chart, step_chart
from ampwise.report.listing import Listing, listing
from ampwise.report.memory_charts import memory_timeline
from ampwise.report.number_charts import drawn_format, exponent_map
from ampwise.report.page import Chart, render_page
from ampwise.report.places import site_words
from ampwise.report.ranks import ranks_table
from ampwise.report.switch_marks import switches_table
from ampwise.report.words import ending, notes

_TONES: Final = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.CAUTION, Severity.INFO: Tone.PLAIN}
_OPEN: Final = 8
"""Findings that a reader sees at once; further ones are folded."""
_KINDS: Final = {
    TensorKind.ACTIVATION: ("activations", "What each module gives."),
    TensorKind.GRADIENT: ("gradients", "Of the activations, as they flow in backward: the loss scale is in them."),
    TensorKind.WEIGHT_GRADIENT: ("weight gradients", "As they lie in .grad when backward has ended."),
    TensorKind.WEIGHT: ("weights", "Before the optimizer's step."),
    TensorKind.UPDATE: ("updates", "What the optimizer's step added to each weight."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A finding as its card reads."""

    rule: str
    severity: str
    tone: Tone
    place: str
    message: str
    unsure: str
    evidence: str
    remedy: str
    plan_rule: str | None


def render_examined(recording: Recording, diagnosis: Diagnosis) -> str:
    """The page of an examination; its first run, or the one that was watched, is the one that is judged."""
    run = judged(recording)
    curves = [chart for chart in _curves(recording) if chart.figure is not None]
    maps = [] if run is None else [chart for chart in _maps(run) if chart.figure is not None]
    timeline = None if run is None else _timeline(run)
    drawn = [*curves, *maps, *([] if timeline is None else [timeline])]
    shown = [_shown(finding) for finding in diagnosis.findings]
    return render_page(
        "examined.html.j2",
        figures={chart.name: chart.figure for chart in drawn if chart.figure is not None},
        recording=recording,
        environment=asdict(recording.environment),
        verdict=verdict(diagnosis, run),
        tone=shown[0].tone if shown else Tone.GOOD if diagnosis.reassurances else Tone.PLAIN,
        examined="" if run is None else examined(run),
        first=shown[:_OPEN],
        folded=shown[_OPEN:],
        plan=None if run is None else whole_plan(diagnosis, run),
        plan_use="" if run is None else how_to_use(run, recording.command),
        reassurances=diagnosis.reassurances,
        gaps=() if run is None else not_seen(run),
        runs=runs_table(recording),
        curves=curves,
        maps=maps,
        maps_caption=_maps_caption(run),
        timeline=timeline,
        numbers=[] if run is None else list(_number_tables(recording, run)),
        owners=None if run is None or run.memory is None else _owners(run),
        speed=[] if run is None else list(tables_of_speed(run.kernels, run.syncs, run.process)),
        casts=None if run is None else casts_table(run),
        failures=[one for one in recording.runs if one.failure is not None],
        notes=notes(by_purpose(recording)),
    )


def judged(recording: Recording) -> RunRecord | None:
    """The run that an examination is about; None where there is none."""
    return next((run for run in recording.runs if run.role is Role.WATCHED), next(iter(recording.runs), None))


def by_purpose(recording: Recording) -> Recording:
    """The same runs, each called by what it was made for, so that a legend tells them apart."""
    return replace(recording, runs=tuple(replace(run, variant=purpose(run)) for run in recording.runs))


def purpose(run: RunRecord) -> str:
    """What a run was made for, in a word or two: ``watched, fp16``."""
    match run.role:
        case Role.COMPARED:
            return run.variant
        case Role.WATCHED | Role.TRACED:
            return f"{run.role.value}, {run.precision}"
        case Role.IN_FP32:
            return "in fp32"
        case Role.UNSCALED:
            return "without the loss scale"
        case Role.RESCUED:
            return "suspects in fp32"
        case _:
            assert_never(run.role)


def runs_table(recording: Recording) -> Listing | None:
    """Which runs were made, and whether each kept its numbers."""
    return listing(
        "The runs that were made",
        "run|precision|#steps|#skipped|first loss not finite|#last loss|end",
        [
            (
                PURPOSES[run.role],
                run.precision,
                str(len(run.steps)),
                str(run.num_skipped),
                _first_bad(run),
                _last_loss(run),
                ending(run.end),
            )
            for run in recording.runs
        ],
        caption="The same script with the same seeds. A fault that is gone in one of them has its cause in what "
        "that one left out.",
    )


def _first_bad(run: RunRecord) -> str:
    bad = next((one for one in run.steps if one.loss is not None and not charts.is_finite(one.loss)), None)
    return "none" if bad is None else f"{bad.loss} at step {bad.index}"


def _last_loss(run: RunRecord) -> str:
    return figure(next((step.loss for step in reversed(run.steps) if step.loss is not None), None), loss)


def _shown(finding: Finding) -> _Shown:
    return _Shown(
        rule=finding.rule,
        severity=finding.severity.value,
        tone=_TONES[finding.severity],
        place=site_words(finding.site),
        message=inert_line(finding.message, max_length=600),
        unsure="" if finding.confidence is Confidence.CERTAIN else finding.confidence.value,
        evidence=inert_line(finding.evidence, max_length=600),
        remedy=inert_line(finding.remedy, max_length=600),
        plan_rule=finding.plan_rule,
    )


def _curves(recording: Recording) -> Iterator[Chart]:
    seen = judged(recording)
    shown = tuple(  # the traced run is the watched one once more; moves of several runs would lie on one another
        run if run is seen else replace(run, switches=()) for run in recording.runs if run.role is not Role.TRACED
    )
    named = by_purpose(replace(recording, runs=shown))
    yield loss_chart(named)
    yield scale_chart(named)
    yield step_chart(named)


def _maps(run: RunRecord) -> Iterator[Chart]:
    if run.numerics is None:
        return
    for kind, (title, caption) in _KINDS.items():
        yield Chart(
            name=f"exponents-{kind.value}",
            title=title,
            caption=caption,
            figure=exponent_map(run.numerics, kind, drawn_format(run.precision)),
        )


def _maps_caption(run: RunRecord | None) -> str:
    name = "" if run is None else drawn_format(run.precision).name
    return (
        "A row a module, a column a power of two: the darker a cell, the more of the module's numbers have that size. "
        f"The bars on top are what each format holds, thin where it loses digits. Orange lies outside of {name}: on "
        "the right it would become infinite, on the left zero. A cross marks rows that hold inf or NaN."
    )


def _number_tables(recording: Recording, run: RunRecord) -> Iterator[Listing]:
    traced = next((one for one in recording.runs if one.role is Role.TRACED), run)
    for table in (
        ranks_table([run]),
        switches_table([run]),
        origins_table(traced.nonfinite) or origins_table(run.nonfinite),
        against_fp32_table(run.against_fp32),
    ):
        if table is not None:
            yield table


def _timeline(run: RunRecord) -> Chart | None:
    if run.memory is None:
        return None
    step = NOTHING if run.memory.step is None else run.memory.step
    return Chart(
        name="memory",
        title="Memory over one step",
        caption=f"Live tensors of step {step}, by what they are for. The rise at its very start was there before.",
        figure=memory_timeline(run.memory.points, run.memory.peak),
    )


def _owners(run: RunRecord) -> Listing | None:
    memory = run.memory
    return None if memory is None else owners_table(memory.owners, memory.peak.total_bytes if memory.peak else None)
