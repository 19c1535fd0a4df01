# pyright: reportPrivateImportUsage=false
"""What ampwise uses of torch.amp's private side: the scaler's states and the kernels that unscale and update."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState, _MultiDeviceReplicator, _refresh_per_optimizer_state

Replicator = _MultiDeviceReplicator
"""Serves copies of one 0-dim tensor to the devices that ask."""

__all__ = [
    "OptState",
    "Replicator",
    "check_finite_",
    "found_inf_in",
    "found_inf_of",
    "fresh_optimizer_states",
    "scale_of",
    "sparse_values",
    "unscale_and_check_",
    "update_scale_",
]

_KERNEL_DTYPES = (torch.float16, torch.float32, torch.float64)


def fresh_optimizer_states() -> "defaultdict[int, dict[str, Any]]":
    """The scaler's per-optimizer states at the start of an iteration."""
    return defaultdict(_refresh_per_optimizer_state)


def update_scale_(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> None:
    """Torch's transition of the scale, in place."""
    torch._amp_update_scale_(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval)


def sparse_values(grad: Tensor) -> Tensor:
    """The stored values of a sparse gradient, duplicates included."""
    return grad._values()


def found_inf_of(replicator: Replicator) -> dict[torch.device, Tensor]:
    """The copies that were asked for, by device."""
    return replicator._per_device_tensors


def scale_of(scaler: Any) -> Tensor | None:
    """A copy of a gradient scaler's scale, on its device; None before it has scaled anything."""
    return None if scaler._scale is None else scaler._scale.clone()


def found_inf_in(scaler: Any, optimizer: Any) -> Tensor | None:
    """More than 0 where the optimizer's gradients were found not finite since the last update; None: unknown."""
    found = list(scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device", {}).values())
    return torch.stack([one.to(found[0].device) for one in found]).sum() if found else None


def unscale_and_check_(grads: Sequence[Tensor], inv_scale: Tensor, found_inf: Tensor, *, may_overflow: bool) -> None:
    """Multiply gradients of one device and dtype by ``inv_scale``; set ``found_inf`` to 1 if any result is not finite.

    Args:
        grads: real gradients; changed in place.
        inv_scale: 0-dim fp32, 1 / scale.
        found_inf: 0-dim fp32; 1 stays 1.
        may_overflow: the factor may be above 1, so that a finite gradient may become infinite. torch's kernel tests
            before it multiplies, so it is not enough then.
    """
    tensors = list(grads)
    if not may_overflow and _kernel_takes(tensors[0]):
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, found_inf, inv_scale)
        return
    torch._foreach_mul_(tensors, inv_scale)
    check_finite_(tensors, found_inf)


def check_finite_(grads: Sequence[Tensor], found_inf: Tensor, *, scale: Tensor | None = None) -> None:
    """Set ``found_inf`` to 1 if any gradient, divided by ``scale``, is not finite. The gradients stay as they are."""
    filled = [grad for grad in grads if grad.numel()]  # a rank's part of a small gradient may hold nothing
    if not filled:
        return
    bound = torch.stack([one.float() for one in torch._foreach_norm(filled, torch.inf)])
    if scale is not None:
        bound = bound / scale
    found_inf.logical_or_(~bound.isfinite().all())


def _kernel_takes(grad: Tensor) -> bool:
    """Whether torch has its fused kernel for these: on accelerators not for bfloat16 (pytorch issue 127176)."""
    return grad.device.type == "cpu" or grad.dtype in _KERNEL_DTYPES
