"""Remembers whose gradients were unscaled before an update that another optimizer of the same step called."""

from collections.abc import MutableMapping
from typing import Any

from torch.optim import Optimizer

from ampwise.compat.scaler import OptState

States = MutableMapping[int, dict[str, Any]]
"""A scaler's states, by the optimizers' ids."""


class UnscaledAhead:
    """The states of optimizers that still have to step in a step that ``update`` has counted.

    Accelerate unscales the gradients of all optimizers to clip them, and calls ``update`` after each ``step``. torch's
    scaler has forgotten by the second one that its gradients are unscaled, and divides them again.
    """

    def __init__(self) -> None:
        self._states: dict[int, dict[str, Any]] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._states

    def keep(self, states: States) -> None:
        """Before an update: keep those that are unscaled and have not stepped, if another has."""
        if any(one["stage"] is OptState.STEPPED for one in states.values()):
            self._states.update({key: one for key, one in states.items() if one["stage"] is OptState.UNSCALED})

    def give(self, optimizer: Optimizer, states: States) -> bool:
        """Put the optimizer's state back into ``states``; whether there was one."""
        state = self._states.pop(id(optimizer), None)
        if state is not None:
            states[id(optimizer)] = state
        return state is not None

    def forget(self) -> None:
        """The next step begins: gradients are made anew."""
        self._states.clear()
