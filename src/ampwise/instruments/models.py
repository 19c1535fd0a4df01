"""Knows the models that a loop calls and the parameters that are trained, without a walk in every step."""

import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn


class Models:
    """The models seen so far, none kept alive."""

    def __init__(self) -> None:
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(tuple(self._models))

    def see_model(self, model: nn.Module) -> None:
        """A model is called."""
        self._models.add(model)

    def see_optimizer(self, optimizer: Any) -> None:
        """An optimizer steps; None stands for the script's own hands."""
        if optimizer is not None:
            self._optimizers.add(optimizer)

    def trained(self) -> list[nn.Parameter]:
        """The parameters of the optimizers, each once; with those of each model of which no optimizer has the first."""
        groups = (group["params"] for one in tuple(self._optimizers) for group in one.param_groups)
        found = {id(one): one for params in groups for one in params}
        for model in self:
            first = next(model.parameters(), None)
            if first is not None and id(first) not in found:
                found.update({id(one): one for one in model.parameters()})
        return list(found.values())
