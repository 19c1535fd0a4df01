"""Gives every batch to a graph at the same place in memory."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ampwise._base.errors import UsageError
from ampwise._base.text import inert_line
from ampwise.compat.tree import flatten, unflatten


class StaticInputs:
    """The arguments of a captured function: tensors are copied in, all else has to stay what it was.

    Args:
        inputs: the first batch's; its shapes, dtypes and other values are those of every batch.
        device: where the tensors are kept.
    """

    def __init__(self, inputs: Sequence[Any], device: torch.device) -> None:
        leaves, self._structure = flatten(tuple(inputs))
        self._leaves = [_kept(one, device) for one in leaves]
        self.arguments: tuple[Any, ...] = unflatten(self._leaves, self._structure)

    @torch.no_grad()
    def fill(self, inputs: Sequence[Any]) -> None:
        """Take in a batch; from pinned memory this does not wait.

        Raises:
            UsageError: it is not of the shapes, dtypes and values that were captured.
        """
        leaves = self.check(inputs)
        for kept, one in zip(self._leaves, leaves, strict=True):
            if isinstance(kept, Tensor):
                kept.copy_(one, non_blocking=True)

    def check(self, inputs: Sequence[Any]) -> list[Any]:
        """The batch's leaves.

        Raises:
            UsageError: it is not of the shapes, dtypes and values that were captured.
        """
        leaves, structure = flatten(tuple(inputs))
        if structure != self._structure:
            raise UsageError(
                f"the captured step was first called with arguments nested as {self._structure}, now as {structure}; "
                "call it alike every time"
            )
        faults = [fault for kept, one in zip(self._leaves, leaves, strict=True) if (fault := _fault(kept, one))]
        if faults:
            raise UsageError(
                f"the captured step's arguments changed: {'; '.join(faults)}. A graph replays the shapes it was "
                "captured with: use DataLoader(..., drop_last=True) or pad, or step on this batch with step.autocast() "
                "and step(loss), between two windows"
            )
        return leaves


def _kept(given: Any, device: torch.device) -> Any:
    if not isinstance(given, Tensor):
        return given
    if given.requires_grad:
        raise UsageError(
            "an argument of the captured step requires a gradient; give data, and make it require one in the loss "
            "function"
        )
    return given.detach().to(device, copy=True)


def _fault(kept: Any, given: Any) -> str | None:
    if isinstance(kept, Tensor) and isinstance(given, Tensor):
        if kept.shape == given.shape and kept.dtype == given.dtype:
            return None
        return f"{_described(kept)} then, {_described(given)} now"
    try:
        same = type(kept) is type(given) and bool(kept == given)
    except (TypeError, ValueError):  # what an array answers is an array
        return f"{_described(given)} cannot be told from another: give a tensor in its place"
    return None if same else f"{_described(kept)} then, {_described(given)} now (only tensors may change)"


def _described(one: Any) -> str:
    if isinstance(one, Tensor):
        return f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}"
    return inert_line(repr(one), max_length=60)
