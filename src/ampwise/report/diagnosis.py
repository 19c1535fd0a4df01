"""A diagnosis for a person at a terminal: the verdict first, then each finding with its evidence and its remedy."""

import textwrap
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from ampwise._base.text import inert, inert_line
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.files import to_plain
from ampwise.records.finding import Finding, Severity
from ampwise.records.recording import Recording
from ampwise.records.run import RunRecord
from ampwise.report.places import site_words
from ampwise.report.words import ending

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_INDENT: Final = "  "


def render_diagnosis(recording: Recording, diagnosis: Diagnosis, console: Console) -> None:
    """Print the verdict, the findings, and what was looked at and found well.

    Args:
        recording: What was examined; its first run is the one that was judged.
        diagnosis: What was made of it.
        console: Where to.
    """
    worst = diagnosis.findings[0].severity if diagnosis.findings else None
    console.print(Text(verdict(diagnosis), style="bold green" if worst is None else _STYLES[worst]))
    for run in recording.runs[:1]:
        console.print(Text(examined(run), style="dim"))
    for finding in diagnosis.findings:
        console.print()
        _print_finding(finding, console)
    if diagnosis.reassurances:
        console.print()
        console.print(Text("Looked at and well:", style="bold"))
        for text in diagnosis.reassurances:
            console.print(_wrapped(f"- {inert_line(text, max_length=600)}", console.width, indent="  "))


def verdict(diagnosis: Diagnosis) -> str:
    """The outcome in one line: ``2 errors, 1 warning``, or that the training is healthy."""
    counts = [
        f"{number} {severity.value}{'s' * (number != 1)}"
        for severity in Severity
        if (number := sum(one.severity is severity for one in diagnosis.findings))
    ]
    if counts:
        return f"Found {', '.join(counts)}."
    if not diagnosis.reassurances:
        return "Nothing was found, and nothing was measured that would show a fault."
    return "Healthy: nothing was found."


def examined(run: RunRecord) -> str:
    """What was looked at: how many steps, in which precision and why, and how it ended."""
    own = f"; {inert_line(run.left_alone)}" if run.left_alone is not None else ""
    steps = f"{len(run.steps)} step{'s' * (len(run.steps) != 1)}"
    return f"{steps} in {inert_line(run.precision)} ({inert_line(run.reason)}{own}); the run {ending(run.end)}."


def diagnosis_json(recording: Recording, diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis in JSON's own types; floats that JSON lacks are tagged as in a record file."""
    return to_plain(
        {
            "created": recording.created,
            "command": recording.command,
            "healthy": diagnosis.is_healthy,
            "findings": [_document(finding) for finding in diagnosis.findings],
            "reassurances": diagnosis.reassurances,
            "environment": recording.environment,
        }
    )


def _document(finding: Finding) -> dict[str, Any]:
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
    head = Text(f"{finding.severity.value} ", style=_STYLES[finding.severity])
    head.append(f"{finding.rule} ", style="bold")
    head.append(site_words(finding.site))
    console.print(head)
    for text in _lines(finding):
        console.print(_wrapped(f"{_INDENT}{text}", console.width, indent=_INDENT * 2))
    if finding.plan_rule is not None:
        console.print(Text(textwrap.indent(inert(finding.plan_rule).rstrip(), _INDENT * 2), style="green"))


def _lines(finding: Finding) -> Iterator[str]:
    unsure = "" if finding.confidence.value == "certain" else f" ({finding.confidence.value})"
    yield f"{inert_line(finding.message, max_length=600)}{unsure}"
    if finding.evidence:
        yield f"seen: {inert_line(finding.evidence, max_length=600)}"
    if finding.remedy:
        yield f"do: {inert_line(finding.remedy, max_length=600)}"


def _wrapped(text: str, width: int, *, indent: str) -> Text:
    """Broken between words only, so that paths and names stay whole."""
    return Text(textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))
