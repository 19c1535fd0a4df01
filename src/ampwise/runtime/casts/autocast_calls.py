"""Calls something with autocast off, or on in another dtype: as ``with torch.autocast(...)``, in a third of its time.

Dynamo and torch.export are given torch's own context manager, which they know.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling, is_exporting

from ampwise.compat.autocast_cache import enter_level, leave_level

Call = Callable[..., Any]


def call_in_fp32(device_type: str, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call with autocast off."""
    if not torch.is_autocast_enabled(device_type) and not is_dynamo_compiling():
        return call(*args, **kwargs)
    return call_without(device_type, call, args, kwargs)


def call_without(device_type: str, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call where autocast is on with it off."""
    if is_dynamo_compiling() or is_exporting():
        with torch.autocast(device_type, enabled=False):
            return call(*args, **kwargs)
    torch.set_autocast_enabled(device_type, False)
    try:
        return call(*args, **kwargs)
    finally:
        torch.set_autocast_enabled(device_type, True)


def call_in_low(
    device_type: str,
    dtype: torch.dtype,
    is_cached: bool,  # noqa: FBT001 - on the hot path
    call: Call,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call with autocast on in ``dtype``; ``is_cached`` keeps the casts of weights until the outermost region ends."""
    if is_dynamo_compiling() or is_exporting():
        with torch.autocast(device_type, dtype=dtype, cache_enabled=is_cached):
            return call(*args, **kwargs)
    was_on, before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    was_cached = torch.is_autocast_cache_enabled()
    enter_level()
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    torch.set_autocast_cache_enabled(is_cached)
    try:
        return call(*args, **kwargs)
    finally:
        torch.set_autocast_cache_enabled(was_cached)
        torch.set_autocast_dtype(device_type, before)
        torch.set_autocast_enabled(device_type, was_on)
        leave_level()
