"""What a training run cost the operating system, and in which part of the loop its time went."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Where a step's time went, on average over the steps timed; the parts add up to ``total_ms``."""

    __pydantic_config__: ClassVar = CHECKS

    data_ms: float
    """Waiting in the DataLoader's ``__next__``; 0 where the script has none."""
    forward_ms: float
    """In outermost calls of modules, evaluation included."""
    backward_ms: float
    optimizer_ms: float
    """In ``Optimizer.step``."""
    other_ms: float
    """The loss, logging, and all else between them."""

    @property
    def total_ms(self) -> float:
        """The step's time."""
        return self.data_ms + self.forward_ms + self.backward_ms + self.optimizer_ms + self.other_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One process's own accounts, over the steps after the first two."""

    __pydantic_config__: ClassVar = CHECKS

    num_steps: int
    """Steps the figures are of; 0 where the run was too short to say."""
    wall_ms: float
    """From the first of them to the last."""
    user_ms: float
    """CPU time of the process's own code, on all threads."""
    system_ms: float
    """CPU time in the kernel on its behalf."""
    minor_faults: int
    """Pages the kernel had to map: many of them each step come from an allocator that hands memory back."""
    major_faults: int
    """Pages that were read from disk."""
    parts: StepParts | None = None
    """None where no step was timed."""
    has_loader: bool = False
    """A torch DataLoader was read in the loop."""
    num_workers: int = 0
    """The most processes that loaded for one DataLoader."""
    is_device_time: bool = False
    """``parts`` were marked in the device's stream; otherwise by the host's clock."""
    cost_ms: float = 0.0
    """What watching added to each step."""

    @property
    def faults_per_step(self) -> float:
        """Minor page faults a step."""
        return self.minor_faults / self.num_steps if self.num_steps else 0.0

    @property
    def system_share(self) -> float:
        """Which share of the process's CPU time was the kernel's."""
        total = self.user_ms + self.system_ms
        return self.system_ms / total if total else 0.0

    @property
    def data_share(self) -> float:
        """Which share of a step was spent waiting for the DataLoader."""
        return self.parts.data_ms / self.parts.total_ms if self.parts and self.parts.total_ms else 0.0
