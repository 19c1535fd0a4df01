"""Attaches a buffer guard to the models that a loop of the user's own calls."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.nn import Module

from ampwise._base.errors import UsageError
from ampwise.runtime.scaling.buffers import BufferGuard, SaveBeforeForward


def check_models(models: Sequence[Any]) -> None:
    """Raise a UsageError unless all are models, and there is one."""
    strangers = [type(one).__name__ for one in models if not isinstance(one, Module)]
    if strangers or not models:
        raise UsageError(f"protect() was given {', '.join(strangers) or 'nothing'}; give the models trained")


def attach(guard: BufferGuard, models: Sequence[Module]) -> Callable[[], None]:
    """Let ``guard`` save the models' buffers before the first forward pass of each step; returns what ends that."""
    guard.watch(models)
    hook: Any = SaveBeforeForward(guard)
    handles = [model.register_forward_pre_hook(hook) for model in models]

    def end() -> None:
        for handle in handles:
            handle.remove()
        guard.unwatch(models)

    return end
