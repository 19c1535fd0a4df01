"""What ampwise uses of torch.nn.Module's private side: where a replica is from, and what is said of hooks."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as torchs


def identity_of(module: nn.Module) -> int:
    """The same number for a module and the replicas that DataParallel makes of it, another for every other module.

    A replica shares every attribute but parameters, buffers and children: the table of its hooks is one object.
    """
    table = module.__dict__.get("_forward_hooks")
    return id(module) if table is None else id(table)


def structure_of(model: nn.Module) -> tuple[list[str | None], list[nn.Module]]:
    """The names of all modules, with a None where those in one module end, and the modules.

    In a third of the time that ``named_modules`` takes.
    """
    names: list[str | None] = []
    modules: list[nn.Module] = []

    def walk(children: Mapping[str, nn.Module | None]) -> None:
        for name, child in children.items():
            if child is not None:
                names.append(name)
                modules.append(child)
                if child._modules:
                    walk(child._modules)
        names.append(None)

    walk(model._modules)
    return names, modules


def is_replica(module: nn.Module) -> bool:
    """Whether DataParallel made this module, for one call on one device."""
    return bool(module.__dict__.get("_is_replica", False))


def after_every_forward(hook: Callable[..., Any]) -> Callable[[], None]:
    """Call ``hook(module, args, kwargs, output)`` after the forward of every module, until the undo is called.

    The handle that torch gives leaves a mark of its hook behind, by which every compiled module goes on warning.
    """
    handle = torchs.register_module_forward_hook(hook, with_kwargs=True)

    def undo() -> None:
        handle.remove()
        torchs._global_forward_hooks_with_kwargs.pop(handle.id, None)

    return undo


def accept_global_hooks() -> Callable[[], None]:
    """Keep torch.compile from warning at each call that hooks for all modules are there, until the undo is called."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    added = warnings.filters[0]

    def undo() -> None:
        if added in warnings.filters:  # not where the script has meanwhile put other filters there
            warnings.filters.remove(added)  # pyright: ignore[reportAttributeAccessIssue] # a list, typed as a sequence

    return undo
