"""Gradients as the scaler unscales them, and what its tests of them found."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise.compat.scaler import Replicator, check_finite_, found_inf_of, unscale_and_check_
from ampwise.runtime.gradients.gradients import grouped_gradients


def gradients(optimizer: Optimizer, *, allow_fp16: bool) -> Iterator[tuple[torch.device, list[Tensor]]]:
    """The optimizer's gradients by device and dtype; raises as ``grouped_gradients`` does."""
    for device, by_dtype in grouped_gradients(optimizer, allow_fp16=allow_fp16).items():
        for grads in by_dtype.values():
            yield device, grads


@torch.no_grad()
def unscale_all_(
    optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, *, allow_fp16: bool, may_overflow: bool
) -> dict[torch.device, Tensor]:
    """Multiply the optimizer's gradients by ``inv_scale``; 1 for each device where a result is not finite."""
    factors, findings = Replicator(inv_scale), Replicator(found_inf)
    for device, grads in gradients(optimizer, allow_fp16=allow_fp16):
        unscale_and_check_(grads, factors.get(device), findings.get(device), may_overflow=may_overflow)
    return found_inf_of(findings)


@torch.no_grad()
def check_all(optimizer: Optimizer, scale: Tensor) -> dict[torch.device, Tensor]:
    """1 for each device where a gradient, divided by ``scale``, is not finite; the gradients stay as they are."""
    scales, findings = Replicator(scale), Replicator(torch.zeros((), dtype=torch.float32, device=scale.device))
    for device, grads in gradients(optimizer, allow_fp16=True):
        check_finite_(grads, findings.get(device), scale=scales.get(device))
    return found_inf_of(findings)


def sum_found(optimizer_state: dict[str, Any], scale: Tensor) -> Tensor:
    """How many devices found non-finite gradients, on the scale's device."""
    found: Iterable[Tensor] = optimizer_state["found_inf_per_device"].values()
    return torch.stack([one.to(scale.device, non_blocking=True).reshape(()) for one in found]).sum()


@torch.no_grad()
def share_found(optimizer_states: Iterable[dict[str, Any]], scale: Tensor) -> None:
    """Let what one optimizer found count for each of these."""
    states = list(optimizer_states)
    found_any = sum_all_found(states, scale).clamp(max=1.0)
    for state in states:
        for device, found in state["found_inf_per_device"].items():
            found.copy_(found_any.to(device, non_blocking=True).reshape(found.shape))


def sum_all_found(optimizer_states: Iterable[dict[str, Any]], scale: Tensor) -> Tensor:
    """How many devices found non-finite gradients, in all optimizers."""
    return torch.stack([sum_found(state, scale) for state in optimizer_states]).sum()
