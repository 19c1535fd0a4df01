"""What a training step keeps in memory, when, and for whom."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.site import Phase, Site


class MemoryCategory(StrEnum):
    """What a storage is for. Every storage belongs to exactly one."""

    PARAMETER = "parameter"
    """Weights, and the buffers of the modules that were called."""
    GRADIENT = "gradient"
    """What a parameter's ``grad`` holds."""
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    """Made in a forward pass and still there when the backward pass began."""
    CAST = "cast"
    """A copy of a tensor in another dtype, made in a forward pass."""
    TEMPORARY = "temporary"
    """Made in the step, and none of the above."""
    WORKSPACE = "workspace"
    """What cuBLAS takes from the allocator for itself."""
    OTHER = "other"
    """There before the step: the data, and whatever else the script keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryBytes:
    """How many bytes one category holds."""

    __pydantic_config__: ClassVar = CHECKS

    category: MemoryCategory
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """What was live at one moment of the step; the categories add up to ``total_bytes``."""

    __pydantic_config__: ClassVar = CHECKS

    event: int
    """Counts the storages that came and went, from the step's start."""
    phase: Phase
    total_bytes: int
    categories: tuple[CategoryBytes, ...]
    """Those that hold any, in the order of ``MemoryCategory``."""

    def bytes_of(self, category: MemoryCategory) -> int:
        """How many bytes ``category`` holds at this moment."""
        return sum(part.bytes for part in self.categories if part.category is category)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOwner:
    """Who holds bytes at the step's peak: storages of one category that were born at one place."""

    __pydantic_config__: ClassVar = CHECKS

    category: MemoryCategory
    site: Site
    """Where they were born; for parameters, gradients and optimizer states the module they belong to."""
    bytes: int
    num_storages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """A variable of the user's that keeps an autograd graph alive from one step into the next."""

    __pydantic_config__: ClassVar = CHECKS

    name: str
    """The variable, as the script calls it: ``total_loss``, ``losses[]`` for the items of a list."""
    file: str
    line: int
    """Where it was put in, as far as the source tells; else where the frame that holds it was when the step ended."""
    num_nodes: tuple[int, ...]
    """Nodes of its graph at the end of each step looked at; growing: the graph of every step is kept."""
    leaf_bytes: int
    """Bytes of the parameters that the graph keeps alive, at the last step looked at."""
    is_of_other_model: bool
    """No parameter of its graph is of a module that there still is: it keeps a model's weights alive."""

    @property
    def is_growing(self) -> bool:
        """Whether its graph was larger at every step looked at than at the one before."""
        return len(self.num_nodes) > 2 and all(
            before < after for before, after in zip(self.num_nodes, self.num_nodes[1:], strict=False)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """What was left in memory when a step had ended."""

    __pydantic_config__: ClassVar = CHECKS

    step: int
    live_bytes: int
    """Storages that Python can reach."""
    cached_cast_bytes: int
    """Casts of parameters that autocast's cache still holds: those that no graph and no variable accounts for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEmptied:
    """A place that hands the allocator's cache back to the driver, so that it must be asked for again."""

    __pydantic_config__: ClassVar = CHECKS

    site: Site
    count: int
    """How often, over the whole run."""
    in_loop: bool
    """It was called between steps or within one, more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorState:
    """What a GPU's caching allocator says of itself."""

    __pydantic_config__: ClassVar = CHECKS

    device: str
    """As in ``cuda:0``."""
    allocated_bytes: int
    """``torch.cuda.memory_allocated``."""
    max_allocated_bytes: int
    reserved_bytes: int
    """``torch.cuda.memory_reserved``: allocated, and kept for later."""
    max_reserved_bytes: int
    active_bytes: int
    """Allocated, and freed blocks another stream may still use."""
    inactive_split_bytes: int
    """Free pieces of blocks whose other pieces are used: cannot be handed back, the measure of fragmentation."""
    requested_bytes: int
    """What was asked for, before rounding to the allocator's block sizes."""
    free_bytes: int
    """``torch.cuda.mem_get_info``: what the driver has left."""
    total_bytes: int
    num_alloc_retries: int
    """How often the cache had to be emptied to serve a request."""
    num_ooms: int
    largest_free_block_bytes: int | None = None
    """In the cache, from the allocator's snapshot; None where it was not taken."""
    releasable_bytes: int | None = None
    """Whole free segments, which can be handed back, from the allocator's snapshot."""
    is_expandable: bool = False
    """``expandable_segments`` is on."""

    @property
    def fragmentation(self) -> float:
        """Which share of the reserved bytes lies in free pieces that cannot be handed back."""
        return self.inactive_split_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """A timeline over one step, what outlives the steps, and the device's own figures."""

    __pydantic_config__: ClassVar = CHECKS

    step: int | None = None
    """Index of the step the timeline is of; None where there is no timeline."""
    device: str = "cpu"
    """Whose memory the timeline counts."""
    points: tuple[MemoryPoint, ...] = ()
    """At most a few hundred moments, the peak among them, in order."""
    peak: MemoryPoint | None = None
    owners: tuple[MemoryOwner, ...] = ()
    """Who holds the peak, the largest first; the last one of a category without a place is the rest of it."""
    step_ends: tuple[StepEnd, ...] = ()
    kept: tuple[KeptTensor, ...] = ()
    cache_emptied: tuple[CacheEmptied, ...] = ()
    allocators: tuple[AllocatorState, ...] = ()
    """At the run's end, or when it ran out of memory; one for each GPU used."""
    cost_ms: float = 0.0
    """What watching added to the step of the timeline: an estimate."""
    note: str | None = None
    """Why there is no timeline, or what it cannot see."""
