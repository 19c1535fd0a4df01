"""What ampwise uses of torch.optim's unwritten protocols."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ampwise._base.errors import UsageError


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Every parameter of the optimizer, in order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def all_parameters(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Every parameter of the optimizers once, as they are now: groups may be added while training."""
    return list(dict.fromkeys(param for one in optimizers for group in one.param_groups for param in group["params"]))


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether any parameter has one."""
    return any(param.grad is not None for param in parameters_of(optimizer))


def clear_gradients(optimizer: Optimizer) -> None:
    """``zero_grad()``; where that is torch's own, without what it costs to be told to a profiler."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(optimizer):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = None


def portable_state(optimizer: Optimizer) -> dict[str, Any]:
    """``state_dict()`` with learning rates that were put on a device as numbers again.

    Raises:
        UsageError: there is state of parameters that are in no group any more, for which torch knows no place.
    """
    kept = {id(param) for param in parameters_of(optimizer)}
    keys: list[Any] = list(optimizer.state)  # some optimizers keep words here too
    num_strays = sum(isinstance(one, Tensor) and id(one) not in kept for one in keys)
    if num_strays:
        raise UsageError(
            f"{type(optimizer).__name__} has state of {num_strays} parameters that are in none of its groups any more, "
            "which torch cannot save: `del optimizer.state[param]` for each parameter of a group that is taken away"
        )
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        if isinstance(group["lr"], Tensor):
            group["lr"] = float(group["lr"])
    return state


def plain_step_of(optimizer: Optimizer) -> Callable[[], Any] | None:
    """The step of one of torch's own classes without hooks and what was put around it; call it under no_grad.

    None for another's class, which may keep what only it knows, for one that evaluates the loss itself, and while a
    scaler has the kernel unscale the gradients.
    """
    cls = type(optimizer)
    is_torchs = cls.__module__.startswith("torch.optim.")
    if not is_torchs or needs_closure(optimizer) or hasattr(optimizer, "grad_scale") or hasattr(optimizer, "found_inf"):
        return None
    return inspect.unwrap(cls.step).__get__(optimizer)


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether the optimizer evaluates the loss itself, so that it cannot step without a function that does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def name_of(optimizer: Optimizer, param: Tensor) -> str:
    """How to find ``param``: by the name it was given to the optimizer with, else by its place and shape."""
    for group_index, group in enumerate(optimizer.param_groups):
        for index, one in enumerate(group["params"]):
            if one is param:
                return _name(group, group_index, index, param)
    return f"a tensor of shape {tuple(param.shape)}"


def _name(group: dict[str, Any], group_index: int, index: int, param: Tensor) -> str:
    names = group.get("param_names")
    place = f"param_groups[{group_index}]['params'][{index}] of shape {tuple(param.shape)}"
    return str(names[index]) if names else place
