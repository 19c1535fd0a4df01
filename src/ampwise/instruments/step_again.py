"""Keeps what an optimizer's step starts from, so that an origin finder can look at it being made once more."""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import starmap
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.operators import AroundOperators, operator_of
from ampwise.compat.optim import plain_step_of
from ampwise.instruments.origins import OriginFinder
from ampwise.interpose.internal import internal

_MAX_BYTES: Final = 16 * 2**20
"""Beyond it, copying costs as much as watching every operator."""


class StepAgain:
    """One step of one of torch's own optimizers, whose operators are many and small.

    What such a step does follows from its groups, its state and the gradients, none of which it lets go of.
    """

    def __init__(self) -> None:
        self._optimizer: Any = None
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._state: dict[Any, dict[str, Any]] = {}

    @property
    def is_kept(self) -> bool:
        """Whether a step is kept."""
        return self._optimizer is not None

    def begin(self, optimizer: Any) -> bool:
        """Keep what the step starts from; False where it cannot be made again, or is as cheaply watched."""
        self.clear()
        if plain_step_of(optimizer) is None:
            return False
        held = list(_held_by(optimizer))
        if sum(one.nbytes for one in held) > _MAX_BYTES or any(one.layout is not torch.strided for one in held):
            return False
        with internal(), torch.no_grad():
            self._kept = [(one, one.clone()) for one in held]
        self._state = _entries_of(optimizer)
        self._optimizer = optimizer
        return True

    def held(self) -> list[Tensor]:
        """What the step leaves behind: the parameters, and what the optimizer keeps of them."""
        return list(_held_by(self._optimizer))

    def run(self, finder: OriginFinder) -> None:
        """Make the step again; everything stays as the first time left it.

        It is made unwatched first: where that leaves other numbers, something else was at work, and none is blamed.
        """
        optimizer, step = self._optimizer, plain_step_of(self._optimizer)
        if step is None:
            return
        state = _entries_of(optimizer)
        after = [(one, one.clone()) for one in _held_by(optimizer)]
        watching = AroundOperators(lambda func, args, kwargs: finder.around(operator_of(func), func, args, kwargs))
        try:
            for mode in (nullcontext(), watching):
                _put_back(optimizer, self._kept, self._state)
                with torch.no_grad(), mode:
                    step()
                if not all(starmap(_is_same, zip(_held_by(optimizer), (value for _, value in after), strict=True))):
                    return
        finally:
            _put_back(optimizer, after, state)

    def clear(self) -> None:
        """Let go of what was kept."""
        self._optimizer = None
        self._kept.clear()
        self._state.clear()


def _held_by(optimizer: Any) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter
                yield from (one for one in optimizer.state.get(parameter, {}).values() if isinstance(one, Tensor))


def _entries_of(optimizer: Any) -> dict[Any, dict[str, Any]]:
    return {parameter: dict(entries) for parameter, entries in optimizer.state.items()}


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _put_back(optimizer: Any, values: list[tuple[Tensor, Tensor]], state: dict[Any, dict[str, Any]]) -> None:
    with internal(), torch.no_grad():
        for tensor, value in values:
            tensor.copy_(value)
    optimizer.state.clear()
    for parameter, entries in state.items():
        optimizer.state[parameter] = dict(entries)
