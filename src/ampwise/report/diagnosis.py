"""A diagnosis for a person at a terminal: the verdict first, then each finding with its evidence and its remedy."""

import shlex
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from ampwise._base.text import inert, inert_line
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.files import to_plain
from ampwise.records.finding import Finding, Severity
from ampwise.records.recording import Recording
from ampwise.records.run import Role, RunEnd, RunRecord
from ampwise.report.places import site_words
from ampwise.report.ranks import print_ranks
from ampwise.report.words import ending

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_INDENT: Final = "  "
_MAX_ALL_WHOLE: Final = 5
"""Findings up to which each is shown in full; of more, the first of them are, and the next have a line each."""
_NUM_WHOLE: Final = 3
_NUM_LISTED: Final = 10
PURPOSES: Final = {
    Role.COMPARED: "measured beside others",
    Role.WATCHED: "watched by every instrument",
    Role.TRACED: "again, with every operator watched",
    Role.IN_FP32: "again in fp32",
    Role.UNSCALED: "again without the loss scale",
    Role.RESCUED: "again with the suspects in fp32",
}
"""What a run was made for."""
_LATER: Final = "Later steps were not looked at: for a NaN that comes later, give --steps a number beyond its step."


def render_diagnosis(
    recording: Recording,
    diagnosis: Diagnosis,
    console: Console,
    *,
    show_all: bool = False,
    how_to_see_all: str = "",
    plan_file: str | None = None,
) -> None:
    """Print the verdict, the findings, and what was looked at and found well.

    Many findings are cut to what a screen bears: the worst in full, then a line each, then a count.

    Args:
        recording: What was examined; its first run is the one that was judged.
        diagnosis: What was made of it.
        console: Where to.
        show_all: Print every finding in full.
        how_to_see_all: What to type for that, where some are not shown.
        plan_file: Where the remedies were written to as a plan.
    """
    findings = diagnosis.findings
    style = "bold green" if diagnosis.is_healthy else _STYLES[findings[0].severity]
    _print(Text(verdict(diagnosis, next(iter(recording.runs), None)), style=style), console)
    for run in recording.runs[:1]:
        _print(Text(_fill(examined(run), console.width), style="dim"), console)
    for text in _failed_alone(recording):
        _print(Text(_fill(text, console.width), style="dim"), console)
    num_whole = len(findings) if show_all or len(findings) <= _MAX_ALL_WHOLE else _NUM_WHOLE
    for finding in findings[:num_whole]:
        console.print()
        _print_finding(finding, console)
    _print_rest(findings[num_whole:], console, how_to_see_all)
    if any(finding.plan_rule for finding in findings) and recording.runs:
        console.print()
        _print(_wrapped(_on_rules(recording, plan_file), console.width, indent=_INDENT), console)
    if diagnosis.is_healthy and any(run.end is RunEnd.STOPPED for run in recording.runs[:1]):
        console.print()
        _print(_wrapped(_LATER, console.width, indent=_INDENT), console)
    if diagnosis.reassurances:
        console.print()
        _print(Text("Looked at and well:", style="bold"), console)
        for text in diagnosis.reassurances:
            _print(_wrapped(f"- {inert_line(text, max_length=600)}", console.width, indent="  "), console)
    gaps = tuple(gap for run in recording.runs[:1] for gap in not_seen(run))
    if gaps:
        console.print()
        _print(Text("Could not be looked at:", style="bold"), console)
        for text in gaps:
            _print(_wrapped(f"- {text}", console.width, indent="  "), console)
    print_ranks(recording.runs[:1], console, with_notes=True)


def verdict(diagnosis: Diagnosis, run: RunRecord | None = None) -> str:
    """The outcome in one line: ``Found 2 errors, 1 warning.``, or that the training is healthy.

    Args:
        diagnosis: What was found.
        run: The run that was judged: one that was stopped is healthy that far only.
    """
    is_cut = run is not None and run.end is RunEnd.STOPPED
    healthy = f"Healthy in the {counted_steps(run)} watched" if run is not None and is_cut else "Healthy"
    if not diagnosis.is_healthy:
        return f"Found {counted(diagnosis.findings)}."
    if diagnosis.findings:
        num = len(diagnosis.findings)
        return f"{healthy}: no error and no warning, {num} remark{'s' * (num != 1)}."
    if not diagnosis.reassurances:
        return "Nothing was found, and nothing was measured that would show a fault."
    return f"{healthy}: nothing was found."


def counted(findings: Iterable[Finding]) -> str:
    """How many there are of each severity: ``2 errors, 1 warning``."""
    numbers = Counter(one.severity for one in findings)
    return ", ".join(
        f"{number} {severity.value}{'s' * (number != 1 and severity is not Severity.INFO)}"
        for severity in Severity
        if (number := numbers[severity])
    )


def whole_plan(diagnosis: Diagnosis, run: RunRecord) -> str | None:
    """The findings' rules as one plan file, one a place, the worst finding's; None where there are none."""
    rules: dict[object, str] = {}
    for finding in diagnosis.findings:
        if finding.plan_rule:
            rules.setdefault(_place(finding.plan_rule), finding.plan_rule.strip())
    if not rules:
        return None
    return "\n\n".join([f'version = 1\ndefault = "{_format_of(run)}"', *rules.values()]) + "\n"


def how_to_use(run: RunRecord, command: Sequence[str], *, plan_file: str = "plan.toml") -> str:
    """What to do with the plan's file: a script that has its own precision or plan is left to it by ``ampwise run``."""
    if run.left_alone is None:
        emulate = f"--emulate {_format_of(run)} " if run.precision.startswith("emulated ") else ""
        return (
            f"ampwise run {emulate}--plan {shlex.quote(plan_file)} {inert_line(shlex.join(command), max_length=1000)}"
        )
    if run.plans_itself:
        return f"add them to the script's own plan, {inert_line(run.left_alone or '', max_length=120)}"
    return f'put ampwise.apply_plan(model, "{plan_file}") in the place of the script\'s own autocast'


def _failed_alone(recording: Recording) -> Iterator[str]:
    """The further runs that crashed though the one that is judged did not: they show nothing of it."""
    first, *others = recording.runs or (None,)
    for run in others:
        if run.failure is not None and first is not None and first.failure is None:
            said = inert_line(f"{run.failure.kind}: {run.failure.message}".removesuffix(": "), max_length=300)
            yield f"The run made {PURPOSES[run.role]} crashed where that one did not: {said}."


def _on_rules(recording: Recording, plan_file: str | None) -> str:
    run = recording.runs[0]
    if plan_file is not None:
        return f"To use the rules: {how_to_use(run, recording.command, plan_file=plan_file)}"
    head = f'version = 1 and default = "{_format_of(run)}"'
    use = how_to_use(run, recording.command)
    return f"To use the rules: give doctor --write-plan plan.toml, or save them there behind {head}; then {use}"


def _place(rule: str) -> object:
    """What a rule is about; a text that is no rule is about itself."""
    try:
        tables = tomllib.loads(rule)["rule"]
        return tuple((table.get("module"), table.get("op")) for table in tables)
    except (ValueError, KeyError, TypeError, AttributeError):
        return rule


def _format_of(run: RunRecord) -> str:
    """The format that a plan for this run has as its default."""
    return inert_line(run.precision).removeprefix("emulated ")


def examined(run: RunRecord) -> str:
    """What was looked at: how many steps, in which precision and why, and how it ended."""
    own = f"; {inert_line(run.left_alone)}" if run.left_alone is not None else ""
    what = f"{counted_steps(run)} in {inert_line(run.precision)} ({inert_line(run.reason)}{own})"
    return f"{what}; the run {ending(run.end)}."


def counted_steps(run: RunRecord) -> str:
    """How many steps it made: ``20 steps``."""
    return f"{len(run.steps)} step{'s' * (len(run.steps) != 1)}"


def not_seen(run: RunRecord) -> tuple[str, ...]:
    """What an instrument could not look at in a run that went well otherwise, and why; each in a line."""
    sections = (getattr(run, field.name) for field in fields(run)) if run.has_finished else ()
    found = (getattr(section, "note", None) for section in sections if is_dataclass(section))
    return tuple(dict.fromkeys(inert_line(note, max_length=600) for note in found if note))


def diagnosis_json(recording: Recording, diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis in JSON's own types; floats that JSON lacks are tagged as in a record file."""
    return to_plain(
        {
            "created": recording.created,
            "command": recording.command,
            "healthy": diagnosis.is_healthy,
            "findings": [finding_document(finding) for finding in diagnosis.findings],
            "reassurances": diagnosis.reassurances,
            "environment": recording.environment,
        }
    )


def finding_document(finding: Finding) -> dict[str, Any]:
    """A finding as every ``--json`` has it."""
    site = finding.site
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "module": None if site is None else site.module,
        "op": None if site is None else site.op,
        "phase": None if site is None else site.phase.value,
        "file": None if site is None else site.file,
        "line": None if site is None else site.line,
        "message": finding.message,
        "evidence": finding.evidence,
        "remedy": finding.remedy,
        "plan_rule": finding.plan_rule,
    }


def _print_finding(finding: Finding, console: Console) -> None:
    head = _wrapped(f"{_head(finding)} {site_words(finding.site)}".rstrip(), console.width, indent=_INDENT * 2)
    head.stylize(_STYLES[finding.severity], 0, len(finding.severity.value))
    head.stylize("bold", len(finding.severity.value), len(_head(finding)))
    _print(head, console)
    for text in _lines(finding):
        _print(_wrapped(f"{_INDENT}{text}", console.width, indent=_INDENT * 2), console)
    if finding.plan_rule is not None:
        _print(Text(textwrap.indent(inert(finding.plan_rule).rstrip(), _INDENT * 2), style="green"), console)


def _print_rest(findings: Sequence[Finding], console: Console, how_to_see_all: str) -> None:
    """A line for each of the next findings, and how many there are beyond them."""
    if not findings:
        return
    console.print()
    listed, left = findings[:_NUM_LISTED], findings[_NUM_LISTED:]
    for finding in listed:
        line = Text(inert_line(f"{_head(finding)} {finding.message}", max_length=max(console.width, 20)))
        line.stylize(_STYLES[finding.severity], 0, len(finding.severity.value))
        _print(line, console)
    if left:
        _print(Text(f"and {len(left)} more: {counted(left)}"), console)
    if how_to_see_all:
        _print(Text(f"all of them in full: {how_to_see_all}", style="dim"), console)


def _head(finding: Finding) -> str:
    return f"{finding.severity.value} {finding.rule}"


def _lines(finding: Finding) -> Iterator[str]:
    unsure = "" if finding.confidence.value == "certain" else f" ({finding.confidence.value})"
    yield f"{inert_line(finding.message, max_length=600)}{unsure}"
    if finding.evidence:
        yield f"seen: {inert_line(finding.evidence, max_length=600)}"
    if finding.remedy:
        yield f"do: {inert_line(finding.remedy, max_length=600)}"


def _print(text: Text, console: Console) -> None:
    """As it is: what is longer than a line, a path say, is left for the terminal to break, so that it can be copied."""
    console.print(text, soft_wrap=True)


def _wrapped(text: str, width: int, *, indent: str) -> Text:
    return Text(_fill(text, width, indent=indent))


def _fill(text: str, width: int, *, indent: str = "") -> str:
    """Broken between words only, so that paths and names stay whole."""
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
