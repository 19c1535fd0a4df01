"""What doctor makes of a recording: its findings, and what it looked at in vain."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ampwise._base.text import inert, inert_line
from ampwise.records.checks import CHECKS
from ampwise.records.finding import Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Findings, the worst first, and why the rest is believed to be well."""

    __pydantic_config__: ClassVar = CHECKS

    findings: tuple[Finding, ...]
    reassurances: tuple[str, ...] = ()
    """What was measured and found well, one sentence with its figures each."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found but remarks: what is well here and would cost time or memory elsewhere."""
        return all(one.severity is Severity.INFO for one in self.findings)

    def __str__(self) -> str:
        """Each finding with its place, evidence and remedy, then what was found well: for a notebook or a log."""
        lines = [line for finding in self.findings for line in _lines(finding)]
        measured = "." if self.reassurances else ", and nothing was measured that would show a fault."
        head = [] if self.findings else [f"Nothing was found{measured}"]
        return "\n".join([*head, *lines, *(f"well: {inert_line(text, max_length=600)}" for text in self.reassurances)])


def _lines(finding: Finding) -> Iterator[str]:
    where = finding.site.where if finding.site is not None else ""
    place = f" at {inert_line(where)}" if where else ""
    yield f"{finding.severity.value} {finding.rule}{place}: {inert_line(finding.message, max_length=600)}"
    for name, text in (("seen", finding.evidence), ("do", finding.remedy)):
        if text:
            yield f"  {name}: {inert_line(text, max_length=600)}"
    if finding.plan_rule is not None:
        yield textwrap.indent(inert(finding.plan_rule).rstrip(), "  ")
