"""What a training step did, known when somebody asks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The outcome of one call of ``step``; its properties wait for the device, its fields do not.

    Attributes:
        is_update: the call ended an accumulation window, so that the optimizers were asked to step.
        found_inf: whether gradients were not finite: a 0-dim tensor, not 0 if so, where the host does not know yet;
            None where nothing is ever skipped.
        scale_tensor: the scale this step's gradients were made with; None is 1.
        grad_norm_tensor: the norm of the unscaled gradients before clipping; None without clipping by norm.
        loss_tensor: the loss, or the sum of several, where a captured step evaluated it; else None.
    """

    is_update: bool = True
    found_inf: "Tensor | bool | None" = None
    scale_tensor: "Tensor | None" = None
    grad_norm_tensor: "Tensor | None" = None
    loss_tensor: "Tensor | None" = None

    @property
    def stepped(self) -> bool:
        """Whether the parameters were changed."""
        return self.is_update and not self.skipped

    @property
    def skipped(self) -> bool:
        """Whether the optimizers would have stepped but for non-finite gradients."""
        return self.is_update and self.found_inf is not None and bool(self.found_inf)

    @property
    def grad_norm(self) -> float | None:
        """The norm of the unscaled gradients before clipping; None without clipping by norm."""
        return None if self.grad_norm_tensor is None else float(self.grad_norm_tensor)

    @property
    def loss(self) -> float | None:
        """The loss, where a captured step evaluated it; else None: the caller has it."""
        return None if self.loss_tensor is None else float(self.loss_tensor)

    @property
    def scale(self) -> float:
        """What the loss was multiplied by."""
        return 1.0 if self.scale_tensor is None else float(self.scale_tensor)
