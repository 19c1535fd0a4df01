"""Findings as a SARIF 2.1.0 log, which code hosts and editors show beside the source."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from ampwise._base.version import __version__
from ampwise.records.finding import Finding, Place, RuleInfo, Severity
from ampwise.records.site import Site

_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif(findings: Sequence[Finding], known: Mapping[str, RuleInfo]) -> dict[str, Any]:
    """The log of one run.

    Args:
        findings: What was found, in the order to be shown.
        known: The rules by id; those that found something are described in the log.
    """
    used = sorted({finding.rule for finding in findings} & set(known))
    driver = {"name": "ampwise", "version": __version__, "rules": [_rule(known[name]) for name in used]}
    results = [_result(finding, used) for finding in findings]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }


def _rule(info: RuleInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "name": info.name,
        "shortDescription": {"text": info.name},
        "fullDescription": {"text": info.why},
        "help": {"text": f"{info.remedy} {info.evidence}"},
        "defaultConfiguration": {"level": _LEVELS[info.severity]},
    }


def _result(finding: Finding, rules: Sequence[str]) -> dict[str, Any]:
    text = finding.message
    if finding.place is not None and finding.place.cell is not None:
        text = f"cell {finding.place.cell}, line {finding.place.line}: {text}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
    }
    if finding.rule in rules:
        result["ruleIndex"] = rules.index(finding.rule)
    location = _location(finding.place, finding.site)
    if location is not None:
        result["locations"] = [{"physicalLocation": location}]
    return result


def _location(place: Place | None, site: Site | None) -> dict[str, Any] | None:
    """Where in a file; lines of a notebook's cell are no lines of the file, so its region is left out."""
    if place is not None:
        region = {
            "startLine": place.line,
            "startColumn": place.column,
            "endLine": place.end_line,
            "endColumn": place.end_column,
        }
        return _artifact(place.path, region if place.cell is None else None)
    if site is None or site.file is None:
        return None
    return _artifact(site.file, None if site.line is None else {"startLine": site.line})


def _artifact(path: str, region: dict[str, int] | None) -> dict[str, Any]:
    uri = quote(path.replace("\\", "/").encode("utf-8", "surrogateescape"))
    artifact: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    return artifact if region is None else {**artifact, "region": region}
