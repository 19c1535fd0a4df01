"""What the rules on memory share: a request that failed, and what a GPU's allocator could have served it from."""

import re
from dataclasses import dataclass
from typing import Final

from ampwise._base.units import format_bytes, parse_bytes
from ampwise.doctor.case import Case
from ampwise.records.memory import AllocatorState, MemoryCategory, MemoryPoint
from ampwise.records.run import RunEnd

_REQUEST: Final = re.compile(r"[Tt]ried to allocate ([0-9.]+ ?[KMG]?i?B)")
_MIB: Final = 2**20
STATES: Final = (MemoryCategory.PARAMETER, MemoryCategory.GRADIENT, MemoryCategory.OPTIMIZER_STATE)
"""What a model's weights take, however large the batch is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A request that a GPU's caching allocator could not serve."""

    num_bytes: int
    state: AllocatorState
    """Of the allocator, when it failed."""

    @property
    def segment_bytes(self) -> int:
        """What the allocator asks the driver for: 2 MiB, 20 MiB, else the next multiple of 2 MiB."""
        if self.num_bytes <= _MIB:
            return 2 * _MIB
        if self.num_bytes < 10 * _MIB:
            return 20 * _MIB
        return -(-self.num_bytes // (2 * _MIB)) * 2 * _MIB

    @property
    def elsewhere_bytes(self) -> int:
        """What is neither free nor the allocator's: CUDA's context, other libraries, other processes."""
        return max(0, self.state.total_bytes - self.state.free_bytes - self.state.reserved_bytes)

    @property
    def missing_bytes(self) -> int:
        """By how much all tensors and the request exceed what the process can have; not above 0 where they fit."""
        return self.state.allocated_bytes + self.num_bytes - (self.state.total_bytes - self.elsewhere_bytes)

    @property
    def is_fragmented(self) -> bool:
        """Whether the free pieces between live tensors would have been enough, were they one."""
        state = self.state
        whole = max(0, state.reserved_bytes - state.active_bytes - state.inactive_split_bytes)
        releasable = whole if state.releasable_bytes is None else state.releasable_bytes
        room = state.free_bytes + releasable
        return self.missing_bytes <= 0 and state.inactive_split_bytes >= self.segment_bytes - room

    @property
    def words(self) -> str:
        """The figures, for a sentence."""
        state = self.state
        return (
            f"{format_bytes(self.num_bytes)} asked of {state.device}: {format_bytes(state.allocated_bytes)} in "
            f"tensors, {format_bytes(state.inactive_split_bytes)} in pieces between them, "
            f"{format_bytes(state.free_bytes)} free, {format_bytes(self.elsewhere_bytes)} held by CUDA and others, "
            f"of {format_bytes(state.total_bytes)}"
        )


def failed_request(case: Case) -> FailedRequest | None:
    """The request that ended the run; None where none did, or the allocator's figures are not known."""
    run = case.run
    states = run.memory.allocators if run.memory is not None else ()
    if run.end is not RunEnd.OUT_OF_MEMORY or run.failure is None or not states:
        return None
    found = _REQUEST.search(run.failure.message)
    if found is None:
        return None
    state = max(states, key=lambda one: (one.num_ooms, one.allocated_bytes))
    return FailedRequest(num_bytes=parse_bytes(found[1]), state=state)


def peak_of(case: Case) -> MemoryPoint | None:
    """The step's peak, where a timeline was taken."""
    return None if case.run.memory is None else case.run.memory.peak


def parts_words(peak: MemoryPoint) -> str:
    """The peak's categories, the largest first: ``optimizer state 8.00 GiB, activation 3.10 GiB``."""
    parts = sorted(peak.categories, key=lambda part: part.bytes, reverse=True)
    return ", ".join(f"{part.category.value.replace('_', ' ')} {format_bytes(part.bytes)}" for part in parts)
