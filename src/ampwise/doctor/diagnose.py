"""Asks every rule about a recording and puts the answers in order."""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from ampwise._base.errors import UsageError
from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule, all_rules
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.finding import Confidence, Finding, Severity
from ampwise.records.recording import Recording

_SEVERITIES: Final = tuple(Severity)
_CONFIDENCES: Final = tuple(Confidence)


class Watched(Protocol):
    """Holds what it recorded: what ``ampwise.watch`` returns."""

    @property
    def recording(self) -> Recording:
        """What was seen so far."""
        ...


def diagnose(recording: "Recording | Watched", *, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """What is wrong with the training that was recorded, the worst first, and why the rest is believed to be well.

    Args:
        recording: At least one run; or what holds one, as ``ampwise.watch`` does.
        rules: Which rules to ask; by default all.

    Raises:
        UsageError: it is neither.
        ValueError: the recording holds no run.
    """
    held: object = recording if isinstance(recording, Recording) else getattr(recording, "recording", None)
    if not isinstance(held, Recording):
        kind = type(recording).__name__
        raise UsageError(f"diagnose() was given {kind}; give what ampwise.watch() returned, or a recording")
    case = Case(held)
    asked = tuple(all_rules() if rules is None else rules)
    found = {rule.info.id: tuple(rule.check(case)) for rule in asked}
    findings = sorted((one for ones in found.values() for one in ones), key=_rank)
    return Diagnosis(findings=tuple(findings), reassurances=tuple(_reassurances(case, asked, found)))


def _reassurances(case: Case, asked: tuple[Rule, ...], found: dict[str, tuple[Finding, ...]]) -> Iterator[str]:
    for rule in asked:
        if not found[rule.info.id]:
            yield from rule.reassure(case)


def _rank(finding: Finding) -> tuple[int, int, str]:
    return _SEVERITIES.index(finding.severity), _CONFIDENCES.index(finding.confidence), finding.rule
