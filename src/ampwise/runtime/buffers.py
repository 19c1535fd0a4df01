"""Keeps what a model remembers between steps (BatchNorm's running statistics) out of a step that is skipped."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from ampwise.interpose.internal import internal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    owner: Module
    name: str
    value: Tensor


class BufferGuard:
    """Saves the buffers of some modules and puts them back.

    Law: after ``save``, any number of forward passes and ``restore(found_inf)`` with ``found_inf`` not 0, every buffer
    is what it was, bit for bit and in place; with ``found_inf`` 0 every buffer is what the forward passes made it.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        unique = dict.fromkeys(module for root in modules for module in root.modules())
        self._owners = [module for module in unique if any(True for _ in module.buffers(recurse=False))]
        self._saved: list[_Saved] = []
        self.is_saved = False

    @torch.no_grad()
    def save(self) -> None:
        """Copy every buffer as it is now. All of them: BatchNorm changes its own without raising their version."""
        with internal():
            self._saved = [
                _Saved(owner=owner, name=name, value=buffer.detach().clone())
                for owner in self._owners
                for name, buffer in owner.named_buffers(recurse=False)
            ]
        self.is_saved = True

    @torch.no_grad()
    def restore(self, found_inf: Tensor | bool | None) -> None:  # noqa: FBT001 - known on the host, or a tensor
        """Put the copies back if ``found_inf`` is not 0, and forget them. An accelerator is not waited for."""
        saved, self._saved, self.is_saved = self._saved, [], False
        if isinstance(found_inf, Tensor) and found_inf.device.type == "cpu":
            found_inf = bool(found_inf)
        if found_inf is None or found_inf is False:
            return
        with internal():
            for one in saved:
                _put_back(one, found_inf)


def _put_back(saved: _Saved, found_inf: Tensor | bool) -> None:  # noqa: FBT001 - known on the host, or a tensor
    current = getattr(saved.owner, saved.name)
    if not isinstance(current, Tensor) or current.shape != saved.value.shape:
        setattr(saved.owner, saved.name, saved.value)
    elif isinstance(found_inf, Tensor):
        current.copy_(torch.where(found_inf.to(current.device) != 0, saved.value, current))
    else:
        current.copy_(saved.value)
