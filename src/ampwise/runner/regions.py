"""Where autocast is on in a script that knows nothing of it: everywhere but in backward and in the optimizer."""

from collections.abc import Callable
from typing import Any

import torch

from ampwise.compat.autograd import is_inside_backward
from ampwise.interpose.backward import BACKWARD, GRAD
from ampwise.interpose.caller import callers, is_torch
from ampwise.interpose.jit_trace import TRACE, TRACE_MODULE
from ampwise.interpose.module_call import MODULE_CALL
from ampwise.interpose.optimizer_step import around_steps, closure_of, with_closure
from ampwise.interpose.seam import Undo, intercept, undo_all


class AutocastRegions:
    """Autocast for the whole script, with its regions.

    Forward and loss run under it, backward and the optimizer's step outside it, a step's closure in the state that
    the step was entered with. The previous state is always what comes back: the script may be in
    ``autocast(enabled=False)``. Casts are cached within a model's outermost call only.

    Args:
        device_type: Whose autocast.
        dtype: What it computes in.
        on_full_precision: Told of an optimizer whose closure is kept in fp32.
    """

    def __init__(
        self, device_type: str, dtype: torch.dtype, *, on_full_precision: Callable[[Any], None] = lambda _: None
    ) -> None:
        self._device_type = device_type
        self._dtype = dtype
        self._on_full_precision = on_full_precision
        self._is_active = False
        self._before = (False, dtype, True)
        self._undos: list[Undo] = []

    def start(self) -> None:
        """Put autocast on for this thread and attach the regions."""
        device_type = self._device_type
        self._before = (
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_cache_enabled(),
        )
        self._set(True, self._dtype, False)
        self._is_active = True
        self._undos = [
            intercept(BACKWARD, self._around_backward),
            intercept(GRAD, self._around_grad),
            around_steps(self._around_step),
            intercept(MODULE_CALL, self._around_call),
            intercept(TRACE, self._around_trace),
            intercept(TRACE_MODULE, self._around_trace),
        ]

    def stop(self) -> None:
        """Detach the regions and put this thread's autocast back as it was. May be called more than once."""
        undos, self._undos = self._undos, []
        if undos:
            self._is_active = False
            undo_all(undos)
            torch.clear_autocast_cache()
            self._set(*self._before)

    def _set(self, enabled: bool, dtype: torch.dtype, cache_enabled: bool) -> None:  # noqa: FBT001 - torch's own triple
        torch.set_autocast_enabled(self._device_type, enabled)
        torch.set_autocast_dtype(self._device_type, dtype)
        torch.set_autocast_cache_enabled(cache_enabled)

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, on: bool) -> Any:
        """Call with autocast on or off, then put it back as it was; no cast from before is used after."""
        device_type = self._device_type
        was_on = torch.is_autocast_enabled(device_type)
        torch.set_autocast_enabled(device_type, on)
        try:
            return call(*args, **kwargs)
        finally:
            torch.clear_autocast_cache()
            # the script's own mixed precision, found meanwhile, starts from autocast off
            torch.set_autocast_enabled(device_type, was_on and self._is_active)

    def _around_backward(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if is_inside_backward():
            return proceed(*args, **kwargs)
        return self._run(proceed, args, kwargs, on=False)

    def _around_grad(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # AOTAutograd traces through torch.autograd.grad: what is done here would be baked into the compiled graph
        if is_inside_backward() or is_torch(next(callers())):
            return proceed(*args, **kwargs)
        return self._run(proceed, args, kwargs, on=False)

    def _around_step(self, proceed: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        closure = closure_of(args, kwargs)
        if closure is not None:
            args, kwargs = with_closure(args, kwargs, self._as_entered(optimizer, closure))
        return self._run(proceed, (optimizer, *args), kwargs, on=False)

    def _as_entered(self, optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
        if needs_exact_losses(optimizer):
            self._on_full_precision(optimizer)
            return closure
        was_on = torch.is_autocast_enabled(self._device_type)

        def under_autocast(*args: Any, **kwargs: Any) -> Any:
            return self._run(closure, args, kwargs, on=was_on and self._is_active)

        return under_autocast

    def _around_trace(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # what is traced is what the script would have exported by itself
        return self._run(proceed, args, kwargs, on=False)

    def _around_call(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled(self._device_type) or is_inside_backward():
            return proceed(*args, **kwargs)
        cache_enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(True)
        torch.autocast_increment_nesting()  # or the end of a region of the model's own would empty the cache
        try:
            return proceed(*args, **kwargs)
        finally:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
            torch.set_autocast_cache_enabled(cache_enabled)
            if not self._is_active:  # stopped meanwhile; Dynamo puts back what it found before it traced the call
                self._set(*self._before)


def needs_exact_losses(optimizer: Any) -> bool:
    """Whether the optimizer's line search compares losses so close that low precision cannot tell them apart."""
    return isinstance(optimizer, torch.optim.LBFGS)
