"""Row for the script's own autograd Functions: those not written for autocast run in fp32."""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept

APPLY = Row(
    name="torch.autograd.Function.apply",
    owner="torch.autograd.function:Function",
    attribute="apply",
    why="forward multiplies in low precision, backward mixes that gradient with saved fp32: RuntimeError",
    obstacle="custom_function",
)
_AUTOCAST_MODULES = (
    "torch.amp.autocast_mode",
    "ampwise.runtime.casts.custom_function",
    "ampwise.runtime.casts.cast_values",
)
_LOW = (torch.float16, torch.bfloat16)


def functions_in_fp32(device_type: str) -> Undo:
    """Run undecorated Functions with autocast off and low-precision arguments as fp32, until the undo is called.

    A Function that refuses fp32 (kernels written for half precision only) gets its arguments as they are.
    """
    only_low: WeakSet[type[Any]] = WeakSet()

    def applied(proceed: Callable[..., Any], cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled(device_type) or knows_autocast(cls):
            return proceed(cls, *args, **kwargs)
        torch.set_autocast_enabled(device_type, False)
        try:
            return in_fp32(proceed, cls, args, kwargs)
        finally:
            torch.set_autocast_enabled(device_type, True)

    def in_fp32(proceed: Callable[..., Any], cls: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if cls not in only_low:
            try:
                return proceed(cls, *map(_widened, args), **{name: _widened(one) for name, one in kwargs.items()})
            except (RuntimeError, TypeError, ValueError, AssertionError) as error:
                if not _is_about_dtypes(error):
                    raise
                only_low.add(cls)
        return proceed(cls, *args, **kwargs)

    return intercept(APPLY, applied)


def knows_autocast(cls: type[Any]) -> bool:
    """Whether the Function is torch's own or wears ``custom_fwd`` or ``custom_bwd``."""
    if cls.__module__.partition(".")[0] == "torch":
        return True
    methods = (getattr(cls, name, None) for name in ("forward", "backward"))
    return any(getattr(method, "__globals__", {}).get("__name__") in _AUTOCAST_MODULES for method in methods)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value


def _is_about_dtypes(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("fp16", "bf16", "float16", "half", "dtype"))
