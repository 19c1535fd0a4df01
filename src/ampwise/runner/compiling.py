"""Compiles a script's outermost modules (``+compile``)."""

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ampwise.observe.events import EventBus, ForwardStarted, Undo

if TYPE_CHECKING:
    from torch import nn


def compile_outermost(bus: EventBus) -> Undo:
    """Compile each outermost module that has parameters when it is first called, until the undo is called.

    Losses and other modules without parameters are left as they are, and so are modules the script compiled itself.
    """
    seen: WeakSet[nn.Module] = WeakSet()

    def compile_first(event: ForwardStarted) -> None:
        module: Any = event.module
        if module not in seen:
            seen.add(module)
            if _can_compile(module):
                module.compile()

    return bus.subscribe(ForwardStarted, compile_first)


def _can_compile(module: Any) -> bool:
    import torch

    if isinstance(module, torch.jit.ScriptModule) or type(module).__module__.startswith("torch._dynamo"):
        return False
    return next(module.parameters(), None) is not None
