"""Rows for the ways a script does mixed precision itself. Decided at run time: its text may name what it never uses."""

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from ampwise.compat.autocast import DECORATOR_FRAME, disable, function_entering, is_enabled
from ampwise.compat.dynamo import belongs_to_dynamo, is_graph, traced_file
from ampwise.interpose.caller import callers, is_torch, is_users, module_of, place, place_of, script_place
from ampwise.interpose.internal import is_hidden
from ampwise.interpose.optimizer_step import on_optimizer
from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept, undo_all

ENTER = Row(
    name="torch.autocast.__enter__",
    owner="torch.amp.autocast_mode:autocast",
    attribute="__enter__",
    why="a script with its own autocast (or Accelerate's, or Lightning's) must not get a second one",
    obstacle="own_autocast",
    when_hidden=True,
)
SCALER = Row(
    name="torch.amp.GradScaler.__init__",
    owner="torch.amp.grad_scaler:GradScaler",
    attribute="__init__",
    why="a loss scaled by the script must not be scaled again",
    obstacle="own_scaler",
)
REGION = Row(
    name="torch.autocast.__init__",
    owner="torch.amp.autocast_mode:autocast",
    attribute="__init__",
    why="whether a fault is precision's is found by running the same script with its own autocast off",
)
_BESIDES = ("torch.amp", "torch.cuda.amp", "torch.cpu.amp", "contextlib", "functools")
_LOW = (torch.float16, torch.bfloat16)
_OURS = str(Path(__file__).parent.parent / "runtime" / "casts" / "autocast_calls.py")
"""Where a plan's own regions are entered, which Dynamo traces as it does the script's."""


class Found(Protocol):
    """Told of the script's own mixed precision."""

    def __call__(self, what: str, *, in_dynamo: bool) -> None:
        """Hear of ``"torch.autocast entered at train.py:31"``; no state may change while Dynamo is at work."""
        ...


def on_own_amp(found: Found, *, is_ours: Callable[[Tensor], bool] = lambda _: False) -> Undo:
    """Call ``found`` before the script's own mixed precision takes effect. It may be called more than once.

    Args:
        found: Told of it.
        is_ours: Whether a parameter is in low precision by ampwise's doing, and so says nothing of the script.
    """

    def entered(proceed: Callable[..., Any], region: torch.autocast, *args: Any, **kwargs: Any) -> Any:
        if is_enabled(region) and not is_hidden():
            frame = _entering_frame()
            if frame is not None and not _is_plans(frame):
                found(f"torch.autocast entered {_entered(frame)}", in_dynamo=belongs_to_dynamo(frame))
        return proceed(region, *args, **kwargs)

    def built(proceed: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> None:
        proceed(scaler, *args, **kwargs)
        if scaler.is_enabled():
            found(f"{type(scaler).__name__} made {where()}", in_dynamo=False)

    def given(optimizer: Any) -> None:
        params = (param for group in optimizer.param_groups for param in group["params"])
        low = next((param for param in params if param.dtype in _LOW and not is_ours(param)), None)
        if low is not None:
            dtype = str(low.dtype).removeprefix("torch.")
            found(f"{type(optimizer).__name__} given {dtype} parameters {where()}", in_dynamo=False)

    undos = intercept(ENTER, entered), intercept(SCALER, built), on_optimizer(given)
    return functools.partial(undo_all, undos)


def switch_off_own_amp(*, autocast: bool) -> Undo:
    """Let gradient scalers made from now on scale nothing, and with ``autocast`` regions do nothing, until the undo."""

    def region_made(proceed: Callable[..., Any], region: torch.autocast, *args: Any, **kwargs: Any) -> None:
        proceed(region, *args, **kwargs)
        disable(region)

    def scaler_made(proceed: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> None:
        proceed(scaler, *args, **kwargs)
        disable(scaler)

    undos = [intercept(SCALER, scaler_made), *([intercept(REGION, region_made)] if autocast else [])]
    return functools.partial(undo_all, undos)


def hold_off_autocast() -> Undo:
    """Let the regions that this thread enters, ampwise's own calls too, compute in fp32 until the undo is called."""
    thread = threading.get_ident()

    def entered(proceed: Callable[..., Any], region: torch.autocast, *args: Any, **kwargs: Any) -> Any:
        result = proceed(region, *args, **kwargs)
        if threading.get_ident() == thread:
            torch.set_autocast_enabled(region.device, False)
        return result

    return intercept(ENTER, entered)


def _entering_frame() -> FrameType | None:
    """The frame that entered the region; None if torch did for itself (checkpointing, ``custom_bwd``, threads)."""
    for frame in callers():
        if _is_decorator(frame):
            return frame
        if not module_of(frame).startswith(_BESIDES):
            # Dynamo enters the script's region on its behalf while it traces it
            return frame if not is_torch(frame) or belongs_to_dynamo(frame) else None
    return None


def _is_plans(frame: FrameType) -> bool:
    """Whether a plan's own region is entered by Dynamo, or one that was looked at when Dynamo traced it."""
    return is_graph(frame) or (belongs_to_dynamo(frame) and traced_file() == _OURS)


def _entered(frame: FrameType) -> str:
    return _decorated(frame) if _is_decorator(frame) else where(frame)


def _is_decorator(frame: FrameType) -> bool:
    return frame.f_code.co_name == DECORATOR_FRAME and module_of(frame).startswith("torch.amp")


def _decorated(frame: FrameType) -> str:
    """Where ``@torch.autocast`` stands: torch itself calls no function so decorated."""
    code = getattr(function_entering(frame.f_locals), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return where()
    return f"at {place(code.co_filename, code.co_firstlineno)}"


def where(frame: FrameType | None = None) -> str:
    """``at`` the user's line that led here, ``by`` the library that stands between."""
    own = script_place()
    if frame is not None and not belongs_to_dynamo(frame) and not is_users(frame.f_code.co_filename):
        library = module_of(frame).partition(".")[0]
        return f"by {library}" + (f", from {own}" if own else "")
    return f"at {own}" if own else f"at {place_of(next(callers()))}"
