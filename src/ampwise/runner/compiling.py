"""Compiles a script's outermost modules (``+compile``)."""

from collections.abc import Callable
from typing import Any

import torch

from ampwise.interpose.module_call import MODULE_CALL
from ampwise.interpose.seam import Undo, intercept

Call = Callable[..., Any]


def compile_outermost() -> Undo:
    """Compile each outermost module that has parameters when it is first called, until the undo is called.

    Losses and other modules without parameters are left as they are, and so are modules the script compiled itself.
    Intercept other things of a module's call first: what comes after this sees the compiled call's inside.
    """
    compiled: dict[Any, Call | None] = {}

    def through(proceed: Call, module: Any, *args: Any, **kwargs: Any) -> Any:
        if module not in compiled:
            compiled[module] = torch.compile(_call_of(module)) if _can_compile(module) else None
        call = compiled[module]
        return proceed(module, *args, **kwargs) if call is None else call(*args, **kwargs)

    return intercept(MODULE_CALL, through)


def _call_of(module: Any) -> Call:
    # Module.compile would leave alone a class of torch's own, as Sequential is, and compile its layers one by one.
    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return call


def _can_compile(module: Any) -> bool:
    if isinstance(module, torch.jit.ScriptModule) or type(module).__module__.startswith("torch._dynamo"):
        return False
    return next(module.parameters(), None) is not None
