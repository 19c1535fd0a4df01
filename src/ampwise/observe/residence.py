"""Tells which tensors of a loop on a CPU would be on the GPU, were it trained there."""

import weakref
from typing import Final

import torch

from ampwise.compat.memory import storages_of
from ampwise.compat.operators import Operator

_SAME_NUMBERS: Final = frozenset({"aten._to_copy", "aten.clone"})


class Residence:
    """Follows what would be on the GPU from the weights and the model's inputs onwards.

    On it are: parameters and what needs a gradient, tensors given to a model, and what an operator made of any of
    them. What the script reads, shuffles or counts beside them is not. A tensor on an accelerator is where it is.
    Nothing is kept alive.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, weakref.ref[torch.Tensor]] = {}
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._copied: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is, or would be, on a device of its own."""
        if tensor.device.type != "cpu":
            return tensor.device.type != "meta"
        if tensor.requires_grad or isinstance(tensor, torch.nn.Parameter):
            return True
        return _holds(self._tensors, tensor) or any(_holds(self._storages, one) for one in storages_of(tensor))

    def add(self, tensor: torch.Tensor) -> None:
        """``tensor`` itself would be there; other views of its memory need not."""
        self._tensors[id(tensor)] = weakref.ref(tensor)

    def follow(self, operator: Operator, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """What an operator makes of such tensors, and what it writes them into, is there too."""
        if not any(self.has(tensor) for tensor in inputs):
            return
        is_copied = operator.name in _SAME_NUMBERS and self.is_copied(inputs[0])
        for tensor in outputs:
            if is_copied:
                self.copy_to_host(tensor)
            self.add(tensor)
            if not operator.is_view:
                for storage in storages_of(tensor):
                    self._storages[id(storage)] = weakref.ref(storage)

    def copy_to_host(self, tensor: torch.Tensor) -> bool:
        """Note that ``tensor`` was copied to the host; False if it had been: on a CPU both are the same tensor."""
        storages = list(storages_of(tensor))
        was_copied = any(_holds(self._copied, storage) for storage in storages)
        for storage in storages:
            self._copied[id(storage)] = weakref.ref(storage)
        return not was_copied

    def is_copied(self, tensor: torch.Tensor) -> bool:
        """Whether the host has the tensor's numbers already."""
        return any(_holds(self._copied, storage) for storage in storages_of(tensor))

    def forget_copies(self) -> None:
        """A new step's numbers have not been copied to the host."""
        self._copied.clear()


def _holds(
    known: "dict[int, weakref.ref[torch.Tensor]] | dict[int, weakref.ref[torch.UntypedStorage]]", item: object
) -> bool:
    reference = known.get(id(item))
    return reference is not None and reference() is item
