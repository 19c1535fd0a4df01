"""Keeps what was found in each optimizer's gradients until its step asks."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ampwise.compat.distributed import local_of
from ampwise.compat.optim import parameters_of
from ampwise.compat.scaler import sparse_values, unscale_and_check_


class Verdicts:
    """Per optimizer, whether its gradients are finite: found on the device, read when the step asks.

    What was found stays true if the script clips by value, which turns an infinity into a number. It is void once
    the gradients are cleared.
    """

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[Any, list[Tensor]] = WeakKeyDictionary()

    def add(self, optimizer: Any, found_inf: Sequence[Tensor]) -> None:
        """Add what was found after one backward pass; nothing where the optimizer is gone."""
        if optimizer is not None:
            self._found.setdefault(optimizer, []).extend(found_inf)

    def knows(self, optimizer: Any) -> bool:
        """Whether any gradient of the optimizer's was looked at."""
        return optimizer in self._found

    def is_finite(self, optimizer: Any) -> bool:
        """Whether all of them were finite. Waits for the device."""
        return not any_found(self._found.get(optimizer, []))

    def clear(self, optimizer: Any) -> None:
        """Forget what was found."""
        self._found.pop(optimizer, None)

    def clear_stale(self) -> None:
        """Forget what was found in gradients that the script has since set to None by itself."""
        for optimizer in list(self._found):
            if all(param.grad is None for param in parameters_of(optimizer)):
                self.clear(optimizer)


def non_finite_in(gradients: Sequence[Tensor]) -> list[Tensor]:
    """For each device and dtype, a 0-dim tensor on it: above 0 if a gradient there holds an infinity or a NaN."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        own = local_of(gradient)  # a DTensor would ask all ranks, of which one may have no gradient
        plain = own if _is_plain(own) else _plain(own.data)
        groups.setdefault((plain.device, plain.dtype), []).append(plain)
    return [_non_finite_in_group(group, device) for (device, _), group in groups.items()]


def any_found(found_inf: Sequence[Tensor]) -> bool:
    """Whether anything was found. Waits for the device."""
    if not found_inf:
        return False
    together: dict[torch.device, list[Tensor]] = {}
    for one in found_inf:
        together.setdefault(one.device, []).append(one)
    return any(bool(torch.stack(several).any()) for several in together.values())


def _non_finite_in_group(gradients: list[Tensor], device: torch.device) -> Tensor:
    found_inf, one = (torch.tensor(value, dtype=torch.float32, device=device) for value in (0.0, 1.0))
    unscale_and_check_(gradients, one, found_inf, may_overflow=False)
    return found_inf


def _is_plain(gradient: Tensor) -> bool:
    # torch's fast check multiplies by 1 in place: values stay, but a graph that saved them must not see a write
    return gradient.layout is torch.strided and gradient.is_floating_point() and not gradient.requires_grad


def _plain(gradient: Tensor) -> Tensor:
    """As a dense real tensor."""
    if gradient.is_sparse:
        gradient = sparse_values(gradient.coalesce())
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
