"""Leaves a step out from inside its closure, where gradients that overflow first appear."""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from ampwise.compat.autograd import version_of
from ampwise.compat.optim import parameters_of
from ampwise.interpose.optimizer_step import closure_of, with_closure
from ampwise.runtime.scaling.closure import Overflowed, Snapshot


class ClosureSkips:
    """Gives steps closures that leave the step by ``Overflowed`` if the gradients they made are not finite.

    torch's own optimizers call the closure before they touch anything, and so do most others. One that moves its
    parameters first (SAM) is put back as it was when its step began.

    Args:
        is_finite: Whether an optimizer's gradients are.
    """

    def __init__(self, is_finite: Callable[[Any], bool]) -> None:
        self._is_finite = is_finite
        self._calls_closure_first: WeakSet[type[Any]] = WeakSet()

    def checked(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The step's arguments with its closure, if it has one, checked."""
        closure = closure_of(args, kwargs)
        if closure is None:
            return args, kwargs
        before = None if self._is_known(type(optimizer)) else _Before(optimizer)

        def checked(*closure_args: Any, **closure_kwargs: Any) -> Any:
            moved = before is not None and before.has_moved()
            if not moved:
                self._calls_closure_first.add(type(optimizer))
            loss = closure(*closure_args, **closure_kwargs)
            if self._is_finite(optimizer):
                return loss
            if before is not None and moved:
                before.restore()
            raise Overflowed(loss)

        return with_closure(args, kwargs, checked)

    def _is_known(self, cls: type[Any]) -> bool:
        return cls in self._calls_closure_first or cls.__module__.startswith("torch.optim.")


class _Before:
    """The optimizer as it was when its step began."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._versions = self._now()
        self._snapshot = Snapshot.take(optimizer)

    def has_moved(self) -> bool:
        return self._versions != self._now()

    def restore(self) -> None:
        self._snapshot.restore(self._optimizer)

    def _now(self) -> list[tuple[int, int]]:
        return [version_of(param) for param in parameters_of(self._optimizer)]
