"""DR502: a GPU's free memory lies in pieces too small to serve a request."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.units import format_bytes
from ampwise.doctor.case import Case
from ampwise.doctor.memory import failed_request
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Finding, RuleInfo, Severity
from ampwise.records.memory import AllocatorState

_SHARE: Final = 0.3
_EXPORT: Final = "`export PYTORCH_ALLOC_CONF=expandable_segments:True`"

INFO = RuleInfo(
    id="DR502",
    name="fragmented",
    severity=Severity.WARNING,
    why="The caching allocator splits large blocks. A piece between live tensors can neither be given back nor joined "
    "with another, so that memory is free, and still a request fails or the cache is emptied for it.",
    remedy=f"{_EXPORT} before the training: segments then grow instead of being split.",
    evidence="the allocator's inactive_split_bytes and num_alloc_retries, by the rules in torch's caching "
    "allocator. Judged on recordings only: no GPU was at hand.",
)


def check(case: Case) -> Iterator[Finding]:
    """A request that failed though the pieces together would have served it; else a cache that had to be emptied."""
    request = failed_request(case)
    if request is not None and request.is_fragmented:
        yield _finding(
            Severity.ERROR,
            f"{request.state.device} ran out of memory with enough of it free, in pieces too small.",
            request.words,
            _remedy(request.state),
        )
    elif request is None and case.run.memory is not None:
        yield from (_at_the_edge(state) for state in case.run.memory.allocators if state.num_alloc_retries)


def reassure(case: Case) -> Iterator[str]:
    """Say how little lies in pieces."""
    states = case.run.memory.allocators if case.run.memory is not None else ()
    for state in states:
        if state.reserved_bytes and state.fragmentation < _SHARE:
            yield f"{state.fragmentation:.0%} of what {state.device} has reserved lies in pieces, and no request failed"


def _at_the_edge(state: AllocatorState) -> Finding:
    is_fragmented = state.fragmentation >= _SHARE
    remedy = _remedy(state) if is_fragmented else "Leave it some room: a batch a little smaller runs faster."
    return _finding(
        INFO.severity,
        f"{state.device} ran at the edge of its memory: the cache was emptied {state.num_alloc_retries} times to serve "
        "a request, and each time the GPU was waited for.",
        f"{format_bytes(state.max_allocated_bytes)} in tensors at most, {format_bytes(state.max_reserved_bytes)} "
        f"reserved of {format_bytes(state.total_bytes)}; {state.fragmentation:.0%} of it in pieces",
        remedy,
    )


def _remedy(state: AllocatorState) -> str:
    if state.is_expandable:
        return "Segments can grow already: make tensors of changing sizes alike (pad batches), and the largest first."
    return INFO.remedy


def _finding(severity: Severity, message: str, evidence: str, remedy: str) -> Finding:
    return Finding(
        rule=INFO.id,
        severity=severity,
        confidence=Confidence.LIKELY,
        message=message,
        evidence=evidence,
        remedy=remedy,
    )


RULE = Rule(info=INFO, check=check, reassure=reassure)
