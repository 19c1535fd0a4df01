"""Unscales gradients where they arrive: one hook on each leaf, before autograd accumulates them."""

import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle, unserializable_hook

from ampwise.compat.autograd import has_hook, register_first_hook, remove_hook
from ampwise.interpose.internal import internal


@dataclass(slots=True, kw_only=True)
class _Mark:
    """What is known of one leaf."""

    leaf: "weakref.ref[Tensor]"
    handle: RemovableHandle
    forget: "weakref.finalize[..., Any]"
    owners: tuple["weakref.ref[Any]", ...] = ()


class LeafHooks:
    """The hooks, which unscale while a scaled backward pass runs and do nothing otherwise.

    Leaves are known by identity and held weakly: an attribute would be copied along with a tensor, the hook not.
    """

    def __init__(self) -> None:
        self._marks: dict[int, _Mark] = {}
        self._scale: float | None = None
        self._inverse = 1.0
        self._hook = _hook_of(self)
        self._retained: list[weakref.ref[Tensor]] = []

    @property
    def is_active(self) -> bool:
        """Whether a scaled pass is running."""
        return self._scale is not None

    def mark(self, leaf: Tensor) -> None:
        """Hook a leaf, once."""
        mark = self._marks.get(id(leaf))
        if mark is None:
            self._add(leaf)
        elif not has_hook(leaf, mark.handle):  # the script has cleared its hooks
            with internal():
                mark.handle = register_first_hook(leaf, self._hook)

    def own(self, leaf: Tensor, optimizer: Any) -> None:
        """Hook a leaf that ``optimizer`` updates."""
        self.mark(leaf)
        mark = self._marks[id(leaf)]
        if all(owner() is not optimizer for owner in mark.owners):
            mark.owners = (*mark.owners, weakref.ref(optimizer))

    def owners_of(self, leaf: Tensor) -> list[Any]:
        """The optimizers that update the leaf."""
        mark = self._marks.get(id(leaf))
        return [] if mark is None else [owner for ref in mark.owners if (owner := ref()) is not None]

    def retain(self, tensor: Tensor) -> None:
        """Remember that autograd will keep the gradient of ``tensor``, which is no leaf."""
        self._retained.append(weakref.ref(tensor))

    def clear(self) -> None:
        """Take every hook off."""
        for mark in self._marks.values():
            mark.forget.detach()
            leaf = mark.leaf()
            if leaf is not None:
                remove_hook(leaf, mark.handle)
        self._marks.clear()
        self._retained.clear()

    @contextmanager
    def scaled_by(self, scale: float | None) -> Generator[None]:
        """While a pass runs whose gradients are ``scale`` times the true ones; None: they are to stay as they are."""
        before = self._scale, self._inverse
        self._scale, self._inverse = scale, 1.0 if scale is None else 1.0 / scale
        try:
            yield
        finally:
            self._scale, self._inverse = before

    @contextmanager
    def true_retained(self, scale: float) -> Generator[None]:
        """After a pass by ``scale``, let what ``retain_grad`` kept be true gradients, added to those from before."""
        self._retained = [ref for ref in self._retained if ref() is not None]
        kept = [(tensor, tensor.grad) for ref in self._retained if (tensor := ref()) is not None]
        for tensor, _ in kept:
            tensor.grad = None
        try:
            yield
        finally:
            for tensor, earlier in kept:
                tensor.grad = _sum(None if tensor.grad is None else tensor.grad * (1.0 / scale), earlier)

    def unscaled(self, gradient: Tensor) -> Tensor:
        """The true gradient."""
        return gradient if self._scale is None else gradient * self._inverse

    def scaled(self, gradient: Tensor) -> Tensor:
        """A true gradient as the running pass needs it."""
        return gradient if self._scale is None else gradient * self._scale

    def _add(self, leaf: Tensor) -> None:
        with internal(), torch.no_grad():
            handle = register_first_hook(leaf, self._hook)
        forget = weakref.finalize(leaf, self._marks.pop, id(leaf), None)
        forget.atexit = False
        self._marks[id(leaf)] = _Mark(leaf=weakref.ref(leaf), handle=handle, forget=forget)


def _hook_of(hooks: LeafHooks) -> Callable[[Tensor], Tensor]:
    @unserializable_hook  # or pickling a leaf would warn of it
    def unscale(gradient: Tensor) -> Tensor:
        return hooks.unscaled(gradient)

    return unscale


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
