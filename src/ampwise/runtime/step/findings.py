"""What a step found, known on the host or still on its way from the device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise.observe.events import StepOutcome
from ampwise.runtime.hardware import host
from ampwise.runtime.scaling.result import StepResult


def on_host(found: Tensor | bool | None) -> bool | None:  # noqa: FBT001 - known on the host, or a tensor
    """Whether gradients overflowed, if that can be said without waiting for the device."""
    if isinstance(found, Tensor):
        return bool(found) if host.reads_freely(found) else None
    return bool(found)


def is_stepped(found: Tensor | bool | None) -> bool | Tensor:  # noqa: FBT001 - known on the host, or a tensor
    """Whether the optimizer stepped, as an event tells it."""
    known = on_host(found)
    if known is None and isinstance(found, Tensor):
        return found == 0
    return not known


def outcome_of(optimizer: Optimizer, result: StepResult) -> StepOutcome:
    """The event of an optimizer's step."""
    return StepOutcome(
        optimizer=optimizer,
        stepped=is_stepped(result.found_inf),
        scale=result.scale_tensor,
        grad_norm=result.grad_norm_tensor,
    )


def sum_of(losses: tuple[Tensor, ...]) -> Tensor:
    """The losses together, without their graph."""
    return sum((one.detach() for one in losses[1:]), losses[0].detach())


def any_of(findings: Sequence[Tensor | bool | None]) -> Tensor | bool | None:
    """Whether one of the optimizers' gradients overflowed."""
    known = [one for one in findings if one is not None]
    tensors = [one for one in known if isinstance(one, Tensor)]
    if not tensors:
        return any(known) if known else None
    device = tensors[0].device
    return torch.stack([torch.as_tensor(one, dtype=torch.float32, device=device) for one in known]).sum()
