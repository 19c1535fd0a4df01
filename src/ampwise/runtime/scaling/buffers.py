"""Keeps what a model remembers between steps (BatchNorm's running statistics) out of a step that is skipped."""

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ampwise.interpose.internal import internal
from ampwise.runtime.hardware import host


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
        self._roots: list[Module] = []
        self._owners: list[Module] = []
        self._saved: list[_Saved] = []
        self.is_saved = False
        self.watch(modules)

    def watch(self, modules: Iterable[Module]) -> None:
        """Save these modules' buffers too, from the next ``save`` on."""
        self._roots += [module for module in modules if not any(module is one for one in self._roots)]
        self._find_owners()

    def unwatch(self, modules: Iterable[Module]) -> None:
        """Leave these modules' buffers alone from now on."""
        gone = list(modules)
        self._roots = [root for root in self._roots if not any(root is one for one in gone)]
        self._find_owners()
        self.drop()

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
    def restore(self, found_inf: Tensor | bool | None, *, keep: bool = False) -> None:  # noqa: FBT001 - known on the host, or a tensor
        """Put the copies back if ``found_inf`` is not 0. An accelerator is not waited for.

        Args:
            found_inf: not 0 after an overflow.
            keep: a second optimizer of the same step may still overflow: keep the copies until ``save`` or ``drop``.
        """
        saved, self.is_saved = self._saved, False
        if not keep:
            self.drop()
        if isinstance(found_inf, Tensor) and host.reads_freely(found_inf):
            found_inf = bool(found_inf)
        if found_inf is None or found_inf is False:
            return
        with internal():
            for one in saved:
                _put_back(one, found_inf)

    def copies(self) -> "list[_Saved]":
        """The copies, for ``resume``."""
        return self._saved

    def resume(self, copies: "list[_Saved]") -> None:
        """Be as after the ``save`` that made these copies."""
        self._saved, self.is_saved = copies, True

    def drop(self) -> None:
        """Forget the copies."""
        self._saved, self.is_saved = [], False

    def _find_owners(self) -> None:
        unique = dict.fromkeys(module for root in self._roots for module in root.modules())
        self._owners = [module for module in unique if any(True for _ in module.buffers(recurse=False))]


class SaveBeforeForward:
    """A forward pre-hook that saves once for each step, before the first forward pass that may be trained on.

    It is called by every thread of a DataParallel. A copy of the model, or its file, gets a hook that does nothing.
    """

    def __init__(self, guard: BufferGuard | None = None) -> None:
        self._guard = guard and weakref.ref(guard)
        self._lock = threading.Lock()

    @torch.compiler.disable
    def __call__(self, module: Module, args: Any) -> None:  # noqa: ARG002 - a hook's signature
        """Save, unless that is done."""
        guard = self._guard and self._guard()
        if guard is None or not torch.is_grad_enabled():
            return
        with self._lock:
            if not guard.is_saved:
                guard.save()

    def __reduce__(self) -> tuple[type["SaveBeforeForward"], tuple[()]]:
        return SaveBeforeForward, ()


def _put_back(saved: _Saved, found_inf: Tensor | bool) -> None:  # noqa: FBT001 - known on the host, or a tensor
    current = getattr(saved.owner, saved.name)
    if not isinstance(current, Tensor) or current.shape != saved.value.shape:
        setattr(saved.owner, saved.name, saved.value)
    elif isinstance(found_inf, Tensor):
        current.copy_(torch.where(found_inf.to(current.device) != 0, saved.value, current))
    else:
        current.copy_(saved.value)
