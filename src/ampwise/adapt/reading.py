"""What one training step showed, and what a trigger makes of it, as plain numbers."""

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One step that ended. What is a tuple has one number for each group of modules, or none where nobody measured."""

    loss: float | None = None
    is_skipped: bool = False
    """The step was left out because its gradients were not finite."""
    is_scaled: bool = False
    """A loss scale multiplied the gradients: where it is too high they overflow, and it comes down by itself."""
    norms: tuple[float, ...] = ()
    """The 2-norm of each group's unscaled gradients; not finite where a gradient was not."""
    suspects: tuple[str, ...] = ()
    """The first parameter of each group whose gradient was not finite; empty where all were."""
    peaks: tuple[float, ...] = ()
    """The largest magnitude among each group's results; not finite where a result was not."""
    shares: tuple[float, ...] = ()
    """Which share of each group's results its low format cannot hold."""
    vanished: tuple[float, ...] = ()
    """Which share of what a product of each group takes would be zero in fp8: the largest of its products."""
    raised: tuple[bool, ...] = ()
    """Which groups were computed in the safer format."""

    @property
    def has_bad_results(self) -> bool:
        """Whether numbers were lost before the backward pass: no loss scale helps there."""
        has_bad_loss = self.loss is not None and not math.isfinite(self.loss)
        return has_bad_loss or any(not math.isfinite(one) for one in self.peaks)

    @property
    def has_bad_gradients(self) -> bool:
        """Whether gradients were not finite."""
        return self.is_skipped or any(not math.isfinite(one) for one in self.norms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How near a reading comes to what a trigger fires at."""

    levels: tuple[float, ...] = (0.0,)
    """One number for all groups together, or one each: 1 is where it fires."""
    causes: tuple[str, ...] = ("",)
    """What was seen, for a person, at each level."""
    is_urgent: bool = False
    """Numbers were lost: no cool-down holds it back."""

    @property
    def is_shared(self) -> bool:
        """It is about all groups together, and does not tell which is to blame."""
        return len(self.levels) == 1

    def level(self, group: int) -> float:
        """How near it comes for one group."""
        return self.levels[0] if len(self.levels) == 1 else self.levels[group]

    def cause(self, group: int) -> str:
        """What was seen of one group."""
        return self.causes[0] if len(self.causes) == 1 else self.causes[group]


CALM: Final = Verdict()
