"""What doctor makes of a recording: its findings, and what it looked at in vain."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Findings, the worst first, and why the rest is believed to be well."""

    __pydantic_config__: ClassVar = CHECKS

    findings: tuple[Finding, ...]
    reassurances: tuple[str, ...] = ()
    """What was measured and found well, one sentence with its figures each."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings
