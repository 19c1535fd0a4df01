"""What ampwise knows of how torch applies an autograd Function."""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import FunctionCtx


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardState:
    """What ``backward`` is to run in.

    Attributes:
        device_type: None where torch's custom_fwd noted it.
        dtype: autocast's.
        uses_autocast: whether autocast was on inside ``forward``.
    """

    device_type: str | None
    dtype: torch.dtype
    uses_autocast: bool


def note_forward_state(ctx: Any, state: ForwardState) -> None:
    """Keep it on ``ctx`` under torch's own names, so that torch's custom_bwd reads it too."""
    ctx._fwd_device_type, ctx._dtype, ctx._fwd_used_autocast = state.device_type, state.dtype, state.uses_autocast


def forward_state(ctx: Any) -> ForwardState | None:
    """What was noted on ``ctx``, by ours or by torch's custom_fwd; None if nothing was."""
    if not hasattr(ctx, "_fwd_used_autocast"):
        return None
    device_type = getattr(ctx, "_fwd_device_type", None)
    return ForwardState(device_type=device_type, dtype=ctx._dtype, uses_autocast=ctx._fwd_used_autocast)


def is_context(value: Any) -> bool:
    """Whether this is the ``ctx`` a Function's methods get."""
    return isinstance(value, FunctionCtx)


def function_applied(*, depth: int) -> type[Any] | None:
    """The Function whose ``apply`` called the function that is ``depth`` calls above this one.

    ``forward`` gets neither its class nor a ``ctx`` where there is a ``setup_context``; ``apply`` is a Python function
    that knows the class, and C++ calls ``forward`` right above it.
    """
    frame = sys._getframe(depth + 1)
    cls = frame.f_locals.get("cls")
    is_function = isinstance(cls, type) and issubclass(cls, torch.autograd.Function)
    return cls if is_function and frame.f_code.co_name == "apply" else None
