"""Where a training loop makes Python wait for the device."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.site import Site


class SyncKind(StrEnum):
    """Why Python has to wait."""

    SCALAR = "scalar"
    """It asks for one number: ``.item()``, ``float(x)``, ``if x``."""
    COPY = "copy"
    """It asks for the numbers of a tensor: ``.cpu()``, ``.numpy()``, ``.tolist()``, ``.to("cpu")``."""
    PRINT = "print"
    """It prints a tensor."""
    SHAPE = "shape"
    """The result's size depends on the numbers: ``nonzero``, a boolean mask as an index, ``unique``."""
    EXPLICIT = "explicit"
    """It says so: ``torch.cuda.synchronize()``."""
    OTHER = "other"
    """CUDA's sync debug mode saw it, and none of the above was going on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlace:
    """One place of the loop that waits."""

    __pydantic_config__: ClassVar = CHECKS

    site: Site
    kind: SyncKind
    call: str
    """What is called there: ``.item()``, ``print``, ``nonzero``; torch's operator where no more is known."""
    count: int
    """How often it waited in the steps watched."""
    num_steps: int
    """In how many of the steps watched it waited."""
    stall_ms: float | None = None
    """How long the host waited there, summed over the steps watched; None on a CPU, where nothing is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRecord:
    """All places that wait for the device in the steps watched, the most frequent first."""

    __pydantic_config__: ClassVar = CHECKS

    steps: tuple[int, ...]
    """Indices of the steps watched."""
    places: tuple[SyncPlace, ...]
    is_real: bool
    """The loop ran on a device of its own; False: it ran on a CPU, and these would wait on a GPU."""
    with_debug_mode: bool = False
    """CUDA's sync debug mode was on as well."""
    cost_ms: float
    """What watching added to each step watched, on average: an estimate from the operators seen."""
    note: str | None = None
    """Why it is incomplete; None where it is not."""

    @property
    def num_per_step(self) -> float:
        """How often a step waits, on average."""
        return sum(place.count for place in self.places) / max(len(self.steps), 1)
