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

Owners = tuple["weakref.ref[Any]", ...]
"""The optimizers that update a leaf."""


@dataclass(slots=True, kw_only=True)
class Mark:
    """What is known of one leaf."""

    leaf: "weakref.ref[Tensor]"
    handle: RemovableHandle
    forget: "weakref.finalize[..., Any]"
    owners: Owners = ()


class LeafHooks:
    """The hooks, which unscale while a scaled backward pass runs and do nothing otherwise.

    Leaves are known by identity and held weakly: an attribute would be copied along with a tensor, the hook not.
    """

    def __init__(self) -> None:
        self._marks: dict[int, Mark] = {}
        self._scale: float | None = None
        self.inverse: float | None = None
        """What a gradient is multiplied by on its arrival; None: nothing."""
        self.inverse_tensor = torch.ones((), dtype=torch.float32, device="cpu")
        """The same for fp32 gradients: a product with a 0-dim tensor costs a quarter of one with a Python number."""
        self._hook = _hook_of(self)
        self._retained: list[weakref.ref[Tensor]] = []

    @property
    def is_active(self) -> bool:
        """Whether a scaled pass is running."""
        return self._scale is not None

    def mark(self, leaf: Tensor) -> Mark:
        """Hook a leaf, once."""
        mark = self._marks.get(id(leaf))
        if mark is None:
            return self._add(leaf)
        if not has_hook(leaf, mark.handle):  # the script has cleared its hooks
            with internal():
                mark.handle = register_first_hook(leaf, self._hook)
        return mark

    def own(self, leaf: Tensor, optimizer: Any) -> None:
        """Hook a leaf that ``optimizer`` updates."""
        mark = self.mark(leaf)
        owner = weakref.ref(optimizer)
        if owner not in mark.owners:
            hash(owner)  # kept by the reference: it stays a key when the optimizer is gone
            mark.owners = (*mark.owners, owner)

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
        before = self._scale, self.inverse
        self._scale, self.inverse = scale, None if scale is None else 1.0 / scale
        if scale is not None:
            self.inverse_tensor = torch.tensor(1.0 / scale, dtype=torch.float32, device="cpu")
        try:
            yield
        finally:
            self._scale, self.inverse = before

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
        return gradient if self.inverse is None else gradient * self.inverse

    def scaled(self, gradient: Tensor) -> Tensor:
        """A true gradient as the running pass needs it."""
        return gradient if self._scale is None else gradient * self._scale

    def _add(self, leaf: Tensor) -> Mark:
        with internal(), torch.no_grad():
            handle = register_first_hook(leaf, self._hook)
        forget = weakref.finalize(leaf, self._marks.pop, id(leaf), None)
        forget.atexit = False
        mark = self._marks[id(leaf)] = Mark(leaf=weakref.ref(leaf), handle=handle, forget=forget)
        return mark


def _hook_of(hooks: LeafHooks) -> Callable[[Tensor], Tensor | None]:
    @unserializable_hook  # or pickling a leaf would warn of it
    def unscale(gradient: Tensor) -> Tensor | None:
        inverse = hooks.inverse
        if inverse is None:
            return None
        return gradient * (hooks.inverse_tensor if gradient.dtype is torch.float32 else inverse)

    return unscale


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
