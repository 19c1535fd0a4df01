"""How a script used mixed precision: what ran under autocast that should not, and what became of its loss scaler."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.site import Site


class Misuse(StrEnum):
    """What a script did that it should not."""

    BACKWARD_UNDER_AUTOCAST = "backward under autocast"
    STEP_UNDER_AUTOCAST = "optimizer step under autocast"
    CLIPPED_SCALED = "gradients clipped while they were scaled"
    STEPPED_SCALED = "optimizer stepped with scaled gradients, past the scaler"
    SCALED_BF16 = "loss scaled that was computed under bf16 autocast"


@dataclass(frozen=True, slots=True, kw_only=True)
class MisusePlace:
    """One line that did so."""

    __pydantic_config__: ClassVar = CHECKS

    kind: Misuse
    site: Site
    count: int
    """How often, in all steps watched."""
    what: str = ""
    """The function or class concerned: ``clip_grad_norm_``, ``AdamW``."""
    scale: float | None = None
    """The loss scale at the first time; None where it plays no part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerMade:
    """A line that makes gradient scalers that scale."""

    __pydantic_config__: ClassVar = CHECKS

    site: Site
    kind: str
    """The scaler's class."""
    count: int
    num_in_loop: int
    """How many of them were made after the first training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A line that saves an optimizer's state with ``torch.save``."""

    __pydantic_config__: ClassVar = CHECKS

    site: Site
    count: int
    has_scaler: bool
    """A scaler's state lies in it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What was seen of it; each list in the order it was first seen."""

    __pydantic_config__: ClassVar = CHECKS

    num_steps: int
    """Steps that ended while the instrument was on."""
    autocast: str | None = None
    """The format of the autocast region, or of the plan, that the script entered last; None where it entered none."""
    num_backwards: int = 0
    misuses: tuple[MisusePlace, ...] = ()
    scalers: tuple[ScalerMade, ...] = ()
    num_scaled: int = 0
    """How often a loss was scaled by a scaler of the script's."""
    saves: tuple[SavedState, ...] = ()

    @property
    def has_scaler(self) -> bool:
        """Whether a scaler of the script's scaled a loss."""
        return self.num_scaled > 0

    def places(self, kind: Misuse) -> tuple[MisusePlace, ...]:
        """The lines that did so."""
        return tuple(place for place in self.misuses if place.kind is kind)
