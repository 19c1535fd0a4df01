"""What ampwise uses of TorchDynamo's private side: switching its tracing off and on around a call, cheaply."""

from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import get_eval_frame_callback, set_eval_frame
from torch.compiler import is_dynamo_compiling

Tracer = Callable[..., Any] | bool | None
"""What Dynamo does with this thread's next Python frame; None: nothing."""

__all__ = ["Tracer", "get_tracer", "is_dynamo_compiling", "set_tracer"]

get_tracer: Callable[[], Tracer] = get_eval_frame_callback
set_tracer: Callable[[Tracer], Tracer] = set_eval_frame
