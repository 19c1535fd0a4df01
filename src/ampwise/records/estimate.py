"""A prediction of the memory a training step takes on a GPU."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS


class Category(StrEnum):
    """What memory is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    """Optimizer state, and master weights where it keeps them."""
    ACTIVATIONS = "activations"
    """What the forward pass saves for the backward pass."""
    CASTS = "casts"
    """Copies of parameters in the compute format."""
    DATA = "data"
    TEMPORARIES = "temporaries"
    WORKSPACES = "workspaces"
    """What cuBLAS takes from the allocator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds memory at the peak."""

    __pydantic_config__: ClassVar = CHECKS

    name: str
    """A module's path, or the user's line."""
    category: Category
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What was live at one moment of the step."""

    __pydantic_config__: ClassVar = CHECKS

    label: str
    """The operator that had just run."""
    phase: str
    by_category: dict[str, int]
    """Bytes by category; they add up to the live bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory of one training step in one precision."""

    __pydantic_config__: ClassVar = CHECKS

    precision: str
    allocated_bytes: int
    """Peak of the allocator's blocks in use, as ``torch.cuda.max_memory_allocated``."""
    reserved_bytes: int | None
    """Peak of what the allocator took from the driver; None where that was not modelled."""
    by_category: dict[str, int]
    """Bytes at the peak by category; they add up to ``allocated_bytes``."""
    peak_phase: str | None = None
    """Which part of the step the peak is in."""
    peak_line: str | None = None
    """The user's ``file:line`` that runs at the peak."""
    by_module: dict[str, int] | None = None
    """Activation bytes at the peak by module path."""
    owners: tuple[Owner, ...] = ()
    """Who holds most at the peak, the largest first."""
    timeline: tuple[Moment, ...] = ()
    context_bytes: int | None = None
    """The CUDA context and loaded kernels, outside of what the allocator knows."""
    capacity_bytes: int | None = None
    """What the device can hold beside its context; None where none was named."""
    is_lower_bound: bool = False
    """The imaginary run could not go on; the step takes at least this much."""
    assumptions: tuple[str, ...] = ()

    @property
    def needed_bytes(self) -> int:
        """What the driver must have: reserved where it is known, else allocated."""
        return self.allocated_bytes if self.reserved_bytes is None else self.reserved_bytes

    @property
    def margin_bytes(self) -> int | None:
        """What would be left on the device; negative where it does not fit; None where none was named."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.needed_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the step fits the device; None where none was named."""
        margin = self.margin_bytes
        return None if margin is None else margin >= 0
