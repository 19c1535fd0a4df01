"""``custom_fwd`` and ``custom_bwd`` for autograd Functions, also for those with a ``setup_context``."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, overload

import torch
from torch import Tensor

from ampwise._base.errors import UsageError
from ampwise.compat.custom_function import (
    ForwardState,
    forward_state,
    function_applied,
    is_context,
    note_forward_state,
)

Method = Callable[..., Any]


@overload
def custom_fwd(fwd: Method, *, device_type: str | None = None, cast_inputs: torch.dtype | None = None) -> Method: ...
@overload
def custom_fwd(
    fwd: None = None, *, device_type: str | None = None, cast_inputs: torch.dtype | None = None
) -> Callable[[Method], Method]: ...
def custom_fwd(
    fwd: Method | None = None, *, device_type: str | None = None, cast_inputs: torch.dtype | None = None
) -> Any:
    """Decorate an autograd Function's ``forward``, so that ``custom_bwd``'s ``backward`` runs in its autocast state.

    A drop-in for ``torch.amp.custom_fwd`` that also serves ``forward(x, ...)`` beside ``setup_context(ctx, inputs,
    output)``, where torch's fails in backward (pytorch issue 132388), and that need not be told the device.

    Args:
        fwd: the ``forward``.
        device_type: as torch's; None takes the first tensor argument's.
        cast_inputs: in an autocast region, cast floating-point arguments (but float64) to this dtype and run
            ``forward`` with autocast off. ``setup_context`` gets the arguments cast too.
    """
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    regime = _Regime(device_type, cast_inputs)

    @functools.wraps(fwd)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        if args and is_context(args[0]):
            regime.note(args[0], (args[1:], kwargs))
        else:
            _note_in_setup_context(function_applied(depth=1), regime)
        return regime.call(fwd, args, kwargs)

    return decorated


@overload
def custom_bwd(bwd: Method, *, device_type: str | None = None) -> Method: ...
@overload
def custom_bwd(bwd: None = None, *, device_type: str | None = None) -> Callable[[Method], Method]: ...
def custom_bwd(bwd: Method | None = None, *, device_type: str | None = None) -> Any:
    """Decorate ``backward`` of an autograd Function, to run in the autocast state of its ``custom_fwd`` forward.

    Args:
        bwd: the ``backward``.
        device_type: as torch's; None takes the one ``forward`` ran on.
    """
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def decorated(ctx: Any, *grads: Any) -> Any:
        state = forward_state(ctx)
        if state is None:
            raise UsageError(
                f"{type(ctx).__name__}: backward wears custom_bwd, but forward does not wear custom_fwd, so the "
                "autocast state to run in is not known; decorate forward with @ampwise.custom_fwd, below @staticmethod"
            )
        kind = device_type or state.device_type or _device_type(grads)
        with torch.autocast(kind, enabled=state.uses_autocast, dtype=state.dtype):
            return bwd(ctx, *grads)

    return decorated


class _Regime:
    """How one ``forward`` is run under autocast."""

    def __init__(self, device_type: str | None, cast_inputs: torch.dtype | None) -> None:
        self._device_type, self._cast_inputs = device_type, cast_inputs

    def note(self, ctx: Any, given: Any) -> None:
        """Tell ``backward`` what it is to run in."""
        kind = self._device_type or _device_type(given)
        uses_autocast = self._cast_inputs is None and torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind)
        note_forward_state(ctx, ForwardState(device_type=kind, dtype=dtype, uses_autocast=uses_autocast))

    def call(self, method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call ``forward``, or ``setup_context`` with what ``forward`` was called with."""
        if self._cast_inputs is None:
            return method(*args, **kwargs)
        kind = self._device_type or _device_type((args, kwargs))
        if not torch.is_autocast_enabled(kind):
            return method(*args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return method(*_cast(args, kind, self._cast_inputs), **_cast(kwargs, kind, self._cast_inputs))


class _NotingSetupContext:
    """A ``setup_context`` that notes the autocast state first: torch calls it in the region that called ``apply``."""

    def __init__(self, original: Method, regime: _Regime) -> None:
        functools.update_wrapper(self, original)
        self.original, self.regime = original, regime

    def __call__(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        self.regime.note(ctx, inputs)
        return self.regime.call(lambda *args: self.original(ctx, args, output), inputs, {})


def _note_in_setup_context(cls: Any, regime: _Regime) -> None:
    """Let the Function's ``setup_context``, which torch looks up after ``forward``, note the state. Done once."""
    if cls is not None:
        noting = cls.setup_context
        if not isinstance(noting, _NotingSetupContext):
            cls.setup_context = staticmethod(_NotingSetupContext(noting, regime))
        elif noting.regime is not regime:  # inherited from a Function whose forward is another
            cls.setup_context = staticmethod(_NotingSetupContext(noting.original, regime))


def _device_type(given: Any) -> str:
    """The first tensor's kind of device; ``cpu`` without any."""
    return next((one.device.type for one in _tensors(given)), "cpu")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """What torch's custom_fwd makes of an argument."""
    if isinstance(value, Tensor):
        eligible = value.is_floating_point() and value.device.type == device_type and value.dtype is not torch.float64
        return value.to(dtype) if eligible else value
    if isinstance(value, Mapping):
        return {key: _cast(one, device_type, dtype) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return _rebuilt(value, [_cast(one, device_type, dtype) for one in value])
    return value


def _rebuilt(value: Any, items: Iterable[Any]) -> Any:
    """Of the same type as ``value``, a named tuple included."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
