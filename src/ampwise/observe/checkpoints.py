"""Says what a saved object holds of a training's state."""

from collections.abc import Mapping
from typing import Any, Final

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

_OPTIMIZER: Final = frozenset({"state", "param_groups"})
_SCALER: Final = frozenset({"scale", "growth_factor", "backoff_factor", "growth_interval"})


def holds_optimizer_state(obj: Any) -> bool:
    """Whether an object that is saved is, or holds, an optimizer or its state."""
    return _holds(obj, Optimizer, _OPTIMIZER)


def holds_scaler_state(obj: Any) -> bool:
    """Whether an object that is saved is, or holds, a gradient scaler or its state."""
    return _holds(obj, GradScaler, _SCALER)


def _holds(obj: Any, kind: type[Any], keys: frozenset[str]) -> bool:
    if isinstance(obj, kind):
        return True
    if isinstance(obj, Mapping):
        return keys <= set(obj) or any(_holds(value, kind, keys) for value in obj.values())
    return isinstance(obj, (list, tuple)) and any(_holds(value, kind, keys) for value in obj)
