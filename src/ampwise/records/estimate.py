"""A prediction of the memory a training step takes on a GPU."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.memory import CategoryBytes, MemoryOwner, MemoryPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that makes a step take less."""

    __pydantic_config__: ClassVar = CHECKS

    what: str
    saved_bytes: int
    """Of what the driver must have."""
    needed_bytes: int
    """What it must have then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory of one training step in one precision."""

    __pydantic_config__: ClassVar = CHECKS

    precision: str
    allocated_bytes: int
    """Peak of the allocator's blocks in use, as ``torch.cuda.max_memory_allocated``."""
    reserved_bytes: int | None
    """Peak of what the allocator took from the driver; None where that was not modelled."""
    categories: tuple[CategoryBytes, ...]
    """Bytes at the peak; they add up to ``allocated_bytes``."""
    peak_phase: str | None = None
    """Which part of the step the peak is in."""
    peak_line: str | None = None
    """The user's ``file:line`` that runs at the peak."""
    owners: tuple[MemoryOwner, ...] = ()
    """Who holds most at the peak, the largest first."""
    timeline: tuple[MemoryPoint, ...] = ()
    least_bytes: int | None = None
    """Peak of the tensors alone, as they asked for it; None where it was not modelled."""
    convolution_bytes: int | None = None
    """What is reserved more, at most, for the workspaces of convolutions."""
    context_bytes: int | None = None
    """The CUDA context and loaded kernels, outside of what the allocator knows."""
    capacity_bytes: int | None = None
    """What the device can hold beside its context; None where none was named."""
    is_lower_bound: bool = False
    """The imaginary run could not go on; the step takes at least this much."""
    assumptions: tuple[str, ...] = ()
    batch_size: int | None = None
    """The script's batch, where the largest one that fits was looked for."""
    remedies: tuple[Remedy, ...] = ()
    """What to change where it does not fit, the largest saving first."""

    @property
    def needed_bytes(self) -> int:
        """What the driver must have: reserved where it is known, else allocated."""
        return self.allocated_bytes if self.reserved_bytes is None else self.reserved_bytes

    @property
    def band_bytes(self) -> tuple[int, int] | None:
        """The least and the most the driver must have: tensors alone; reserved, with convolutions' workspaces."""
        if self.least_bytes is None:
            return None
        return self.least_bytes, self.needed_bytes + (self.convolution_bytes or 0)

    @property
    def margin_bytes(self) -> int | None:
        """What would be left on the device; negative where it does not fit; None where none was named."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.needed_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the step fits the device; None where none was named, or where it takes an unknown amount more."""
        margin = self.margin_bytes
        if margin is None or (self.is_lower_bound and margin >= 0):
            return None
        return margin >= 0
