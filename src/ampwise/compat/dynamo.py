"""What ampwise uses of TorchDynamo's private side: switching its tracing off and on around a call, cheaply."""

from collections.abc import Callable
from types import FrameType
from typing import Any

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    get_eval_frame_callback,
    set_code_exec_strategy,
    set_eval_frame,
)
from torch._guards import CompileContext, TracingContext
from torch.compiler import is_dynamo_compiling

Tracer = Callable[..., Any] | bool | None
"""What Dynamo does with this thread's next Python frame; None: nothing."""

__all__ = [
    "Tracer",
    "belongs_to_dynamo",
    "get_tracer",
    "hide_from_dynamo",
    "is_compiling_here",
    "is_dynamo_compiling",
    "is_graph",
    "never_compile_alone",
    "set_tracer",
    "traced_file",
]

get_tracer: Callable[[], Tracer] = get_eval_frame_callback
set_tracer: Callable[[Tracer], Tracer] = set_eval_frame


def never_compile_alone(*functions: Any) -> None:
    """Keep Dynamo from starting a graph in these functions; where it meets them in one, it looks through them."""
    for function in functions:
        set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))


def hide_from_dynamo(function: Callable[..., Any]) -> None:
    """Keep Dynamo from compiling ``function``'s frames, and what they call, where eager code meets them."""
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def belongs_to_dynamo(frame: FrameType) -> bool:
    """Whether the frame is Dynamo's own, or the code of a graph it made."""
    return is_graph(frame) or str(frame.f_globals.get("__name__", "")).startswith("torch._dynamo")


def is_graph(frame: FrameType) -> bool:
    """Whether the frame runs the code of a graph that Dynamo made."""
    return frame.f_code.co_filename.startswith("<eval_with_key>")


def is_compiling_here() -> bool:
    """Whether this thread's code is called in the middle of a compilation, as the garbage collector's may be."""
    return CompileContext.try_get() is not None or TracingContext.try_get() is not None


def traced_file() -> str | None:
    """The source file of the code that Dynamo is tracing in this thread; None where it traces none."""
    context = TracingContext.try_get()
    stack = TracingContext.extract_stack() if context is not None else None
    return stack[-1].filename if stack else None
