"""Gradients as the scaler unscales them, and what its tests of them found."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise.runtime.gradients import grouped_gradients


def gradients(optimizer: Optimizer, *, allow_fp16: bool) -> Iterator[tuple[torch.device, list[Tensor]]]:
    """The optimizer's gradients by device and dtype; raises as ``grouped_gradients`` does."""
    for device, by_dtype in grouped_gradients(optimizer, allow_fp16=allow_fp16).items():
        for grads in by_dtype.values():
            yield device, grads


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
