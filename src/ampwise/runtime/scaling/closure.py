"""Lets an optimizer that evaluates the loss itself (LBFGS) be undone when an evaluation overflows."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise.compat.optim import parameters_of
from ampwise.compat.scaler import OptState


class Overflowed(BaseException):
    """Leaves an optimizer's ``step`` from inside its closure; no ``except Exception`` of a script stops it."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An optimizer's parameters and state as they were."""

    parameters: list[Tensor]
    state: dict[Any, Any]

    @classmethod
    def take(cls, optimizer: Optimizer) -> "Snapshot":
        """Copy what ``step`` may change."""
        parameters = [param.detach().clone() for param in parameters_of(optimizer)]
        return cls(parameters=parameters, state={key: copy.deepcopy(value) for key, value in optimizer.state.items()})

    @torch.no_grad()
    def restore(self, optimizer: Optimizer) -> None:
        """Put the copies back, in place."""
        for param, saved in zip(parameters_of(optimizer), self.parameters, strict=True):
            param.copy_(saved)
        optimizer.state.clear()
        optimizer.state.update(self.state)


def step_with_closure(
    optimizer: Optimizer,
    state: dict[str, Any],
    closure: Callable[[], Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    unscale: Callable[[], None],
    num_scale_calls: Callable[[], int],
) -> Any:
    """Step an optimizer with its closure, unless an evaluation overflows; its last loss.

    Args:
        optimizer: is given a closure that makes finite, unscaled gradients.
        state: the scaler's of the optimizer; marked as stepped.
        closure: the loop's own, see ``evaluate_unscaled``.
        args: the rest of ``step``'s arguments.
        kwargs: those given by name.
        unscale: unscales and tests the optimizer's gradients.
        num_scale_calls: how often the scaler has scaled.

    Raises:
        RuntimeError: the optimizer has stepped already, in torch's words.
    """
    if state["stage"] is OptState.STEPPED:
        raise RuntimeError("step() has already been called since the last update().")

    def evaluate() -> Any:
        return evaluate_unscaled(closure, state, unscale=unscale, num_scale_calls=num_scale_calls)

    returned = step_undoably(optimizer, evaluate, args, kwargs)
    state["stage"] = OptState.STEPPED
    return returned


def step_undoably(
    optimizer: Optimizer, evaluate: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Step an optimizer that evaluates the loss; put everything back, and give that loss, if an evaluation overflows.

    Args:
        optimizer: is given a closure.
        evaluate: gives a loss and makes its gradients, or raises ``Overflowed``.
        args: the rest of ``step``'s arguments.
        kwargs: those given by name.
    """
    snapshot: Snapshot | None = None

    def closure() -> Any:
        nonlocal snapshot
        loss = evaluate()
        snapshot = snapshot or Snapshot.take(optimizer)
        return loss

    try:
        return optimizer.step(closure, *args, **kwargs)
    except Overflowed as overflow:
        if snapshot:
            snapshot.restore(optimizer)
        return overflow.loss


def evaluate_unscaled(
    closure: Callable[[], Any],
    state: dict[str, Any],
    *,
    unscale: Callable[[], None],
    num_scale_calls: Callable[[], int],
) -> Any:
    """Call the closure; its gradients, if it made any, are unscaled and finite after it.

    Args:
        closure: may scale, backpropagate and unscale as the loop around it would.
        state: the scaler's of the optimizer.
        unscale: unscales and tests the optimizer's gradients.
        num_scale_calls: how often the scaler has scaled, by which a closure that made gradients is known.

    Raises:
        Overflowed: a gradient is not finite.
    """
    stage, state["stage"] = state["stage"], OptState.READY
    before = num_scale_calls()
    loss = closure()
    if state["stage"] is OptState.READY and num_scale_calls() == before:
        state["stage"] = stage
    if state["stage"] is OptState.READY:
        unscale()
    if any(bool(found) for found in state["found_inf_per_device"].values()):
        raise Overflowed(loss)
    return loss


def split_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[[], Any] | None, tuple[Any, ...], dict[str, Any]]:
    """The closure among ``step``'s arguments, if there is one, and the arguments without it."""
    if kwargs.get("closure") is not None:
        return kwargs["closure"], args, {name: value for name, value in kwargs.items() if name != "closure"}
    if args and callable(args[0]):
        return args[0], args[1:], kwargs
    return None, args, {name: value for name, value in kwargs.items() if name != "closure"}
