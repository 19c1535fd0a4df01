"""Shows findings: one line each, with source and help, or as JSON, GitHub annotations or SARIF."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, assert_never

from ampwise._base.text import inert, inert_line
from ampwise.lint.engine import FileReport
from ampwise.lint.unreadable import UNREADABLE
from ampwise.records.finding import Finding, Place, RuleInfo, Severity
from ampwise.records.sarif import sarif


class Format(StrEnum):
    """The forms of output."""

    CONCISE = "concise"
    FULL = "full"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


_GITHUB: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_ESCAPES: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY_ESCAPES: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def render(
    reports: Sequence[FileReport], rules: Iterable[RuleInfo], form: Format, *, allow_unsafe: bool = False
) -> str:
    """All findings as text in one of the forms; empty where there are none and the form allows that.

    Args:
        reports: what was found, in the order to be shown.
        rules: what the rules that ran say about themselves.
        form: the form.
        allow_unsafe: whether unsafe fixes count as possible.
    """
    known = {info.id: info for info in (UNREADABLE, *rules)}
    match form:
        case Format.CONCISE:
            lines = [line for report in reports for line in _concise(report.findings, allow_unsafe=allow_unsafe)]
        case Format.FULL:
            lines = [line for report in reports for line in _full(report, known, allow_unsafe=allow_unsafe)]
        case Format.JSON:
            rows = [_row(one, allow_unsafe=allow_unsafe) for report in reports for one in report.findings]
            return json.dumps(rows, indent=1)
        case Format.GITHUB:
            lines = [_annotation(one, known) for report in reports for one in report.findings]
        case Format.SARIF:
            return json.dumps(sarif([one for report in reports for one in report.findings], known), indent=1)
        case _:
            assert_never(form)
    return "\n".join(lines)


def is_fixable(finding: Finding, *, allow_unsafe: bool) -> bool:
    """Whether ``--fix``, with ``--unsafe-fixes`` or without, would put the finding right."""
    return finding.fix is not None and (finding.fix.is_safe or allow_unsafe)


def _concise(findings: Sequence[Finding], *, allow_unsafe: bool) -> Iterator[str]:
    """One line a finding; findings of one rule and group share a line."""
    groups: dict[tuple[str, str, bool], list[Finding]] = {}
    for number, finding in enumerate(findings):
        key = finding.group or f"#{number}"
        groups.setdefault((finding.rule, key, is_fixable(finding, allow_unsafe=allow_unsafe)), []).append(finding)
    for (_, _, fixable), members in groups.items():
        first = members[0]
        more = _also(members)
        yield f"{_where(first.place)} {first.rule} {'[*] ' * fixable}{_plain(first.message)}{more}"


def _also(members: Sequence[Finding]) -> str:
    lines = [one.place.line for one in members[1:] if one.place is not None]
    if not lines:
        return ""
    shown = ", ".join(map(str, dict.fromkeys(lines[:8])))
    rest = f" and {len(lines) - 8} more" if len(lines) > 8 else ""
    return f" ({len(members)} in {members[0].group}: also line{'s' * (len(lines) > 1)} {shown}{rest})"


def _where(place: Place | None) -> str:
    if place is None:
        return ""
    cell = f"cell {place.cell}:" if place.cell is not None else ""
    return f"{inert_line(place.path, max_length=1000)}:{cell}{place.line}:{place.column}:"


def _plain(text: str) -> str:
    return inert_line(text, max_length=300)


def _full(report: FileReport, known: Mapping[str, RuleInfo], *, allow_unsafe: bool) -> Iterator[str]:
    for finding, line in zip(report.findings, report.lines, strict=True):
        yield from _concise([finding], allow_unsafe=allow_unsafe)
        yield from _excerpt(finding.place, line)
        info = known.get(finding.rule)
        if info is not None:
            yield f"   = {info.name} ({finding.severity.value}): {info.why}"
            yield f"   = do: {info.remedy}"
        yield ""


def _excerpt(place: Place | None, line: str) -> Iterator[str]:
    shown = inert(line).expandtabs(1)
    if place is None or not shown.strip():
        return
    width = place.end_column - place.column if place.end_line == place.line else len(shown) - place.column + 1
    yield f"{place.line:>5} | {shown}"
    yield f"      | {' ' * (place.column - 1)}{'^' * max(width, 1)}"


def _row(finding: Finding, *, allow_unsafe: bool) -> dict[str, Any]:
    place = finding.place
    row: dict[str, Any] = {
        "path": place.path if place is not None else None,
        "line": place.line if place is not None else None,
        "col": place.column if place is not None else None,
        "rule": finding.rule,
        "severity": finding.severity.value,
        "message": finding.message,
        "fixable": is_fixable(finding, allow_unsafe=allow_unsafe),
    }
    if place is not None and place.cell is not None:
        row["cell"] = place.cell
    return row


def _annotation(finding: Finding, known: Mapping[str, RuleInfo]) -> str:
    place, info = finding.place, known.get(finding.rule)
    title = f"{finding.rule} {info.name}" if info is not None else finding.rule
    where: dict[str, object] = {}
    cell = ""
    if place is not None:
        where |= {"file": place.path, "line": place.line, "col": place.column}
        if place.end_line != place.line:
            where["endLine"] = place.end_line
        if place.cell is not None:
            where, cell = dict[str, object](file=place.path), f"cell {place.cell}, line {place.line}: "
    properties = ",".join(
        f"{key}={inert_line(str(value), max_length=1000).translate(_PROPERTY_ESCAPES)}"
        for key, value in {**where, "title": title}.items()
    )
    message = _plain(f"{cell}{finding.message}").translate(_ESCAPES)
    return f"::{_GITHUB[finding.severity]} {properties}::{message}"
