"""Where a run took place."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and software under a run; a figure means nothing without them."""

    __pydantic_config__: ClassVar = CHECKS

    ampwise: str
    """ampwise's version."""
    python: str
    torch: str
    platform: str
    """Operating system and machine, as in ``Linux-6.1-x86_64``."""
    device: str
    """The device trained on, as in ``cpu`` or ``cuda:0``."""
    device_name: str
    """The processor's or GPU's own name."""
    num_threads: int
    """Threads torch computes with on the CPU."""
    allocator: str
    """The CPU allocator's setting: ``tuned``, ``system`` or the user's own, in words."""
    cuda: str | None = None
    """The CUDA version torch was built with and the driver's, if there is a GPU."""
