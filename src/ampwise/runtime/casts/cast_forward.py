"""A module's forward under a plan: in a format of its own, with its own rules for operators.

It takes the place of ``forward`` among the module's own attributes, and is all that a plan leaves on a model. torch
calls it as it would the method, so that compilers look through it, hooks and checkpointing stand around it, and each
thread is in its own state. It is copied and pickled with its module.
"""

from collections.abc import Callable
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from ampwise._base.errors import CannotRunError
from ampwise.runtime.casts.autocast_calls import call_in_fp32, call_in_low
from ampwise.runtime.casts.cast_values import LOW, cast_to, device_type_of, widened, with_gradient_in
from ampwise.runtime.casts.op_rules import Formats, OpTable, run_under

if TYPE_CHECKING:
    from ampwise.runtime.casts.gauge import Gauge, UnderflowGauge


class NoTorchScriptError(CannotRunError, AttributeError):
    """TorchScript cannot compile what a plan put on a module; to others, there is no such attribute."""


class CastForward:
    """Calls a module's own forward in the formats of a plan.

    Args:
        call: The forward that was there.
        region: The formats of the module and all that runs in it; None leaves it in those around it.
        table: The rules on operators in it; None leaves those around it.
        device_type: Whose autocast, where the arguments of a call do not tell.
        is_outermost: The region is the plan's first, in which casts of weights may be kept.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        *,
        region: Formats | None,
        table: OpTable | None,
        device_type: str,
        is_outermost: bool = False,
    ) -> None:
        self.call = call
        self.region = region
        """Read at every call: another value takes effect from the next call on, in one more graph of a compiled one."""
        self.table = table
        self.gauge: Gauge | None = None
        """Takes in what a call gives."""
        self.intake: UnderflowGauge | None = None
        """Takes in what a call is given."""
        self._device_type = device_type
        self._is_outermost = is_outermost

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward that was there, from which ``inspect`` reads the arguments."""
        return self.call

    @property
    def __code__(self) -> CodeType:
        """Of the forward that was there, which ``torch.export`` reads."""
        return getattr(self.call, "__func__", self.call).__code__

    @property
    def __globals__(self) -> dict[str, Any]:
        """Of the forward that was there, which only TorchScript's compiler reads here."""
        raise NoTorchScriptError(
            "a plan is in effect on this model, and torch.jit.script compiles the forward beneath it: what it makes "
            "would compute without the plan. Use torch.jit.trace(model, inputs), which records the plan's casts; or "
            "script the model when the plan is off it: call apply_plan's undo first, or leave the autocast region"
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        kept = kept_forward(self.call)
        return _made_again, (type(self), kept, self.region, self.table, self._device_type, self._is_outermost)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the forward that was there, in the plan's formats."""
        if self.intake is not None:
            self.intake.take((args, kwargs))
        table, call = self.table, self._in_region
        result = call(*args, **kwargs) if table is None else run_under(table, call, args, kwargs)
        if self.gauge is not None:
            self.gauge.take(result)
        return result

    def bound_to(self, module: nn.Module) -> Self:
        """The same for a copy of the module that shares its attributes."""
        call = MethodType(self.call.__func__, module) if isinstance(self.call, MethodType) else self.call
        return type(self)(
            call,
            region=self.region,
            table=self.table,
            device_type=self._device_type,
            is_outermost=self._is_outermost,
        )

    def switch(self, region: Formats | None, table: OpTable | None) -> None:
        """Compute in these formats from the next call on."""
        self.region, self.table = region, table

    def release(self) -> None:
        """Do nothing from now on but call the forward that was there."""
        self.region = self.table = self.gauge = self.intake = None

    def _in_region(self, *args: Any, **kwargs: Any) -> Any:
        region = self.region
        if region is None:
            return self.call(*args, **kwargs)
        device_type = device_type_of(args, kwargs) or self._device_type
        if region.compute in LOW:
            result = self._run_low(region, device_type, args, kwargs)
        else:
            args = tuple([widened(one) for one in args])
            if kwargs:
                kwargs = {name: widened(one) for name, one in kwargs.items()}
            result = call_in_fp32(device_type, self.call, args, kwargs)
        if region.output is not None:
            result = cast_to(result, region.output)
        return result if region.grad is None else with_gradient_in(result, region.grad)

    def _run_low(self, region: Formats, device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = region.compute
        is_within = torch.is_autocast_enabled(device_type)
        if is_within and torch.get_autocast_dtype(device_type) is dtype:
            is_cached = torch.is_autocast_cache_enabled()
        else:  # the cache does not know of dtypes: in a region within another it would hand out the other's casts
            is_cached = self._is_outermost and not is_within
        result = call_in_low(device_type, dtype, is_cached, self.call, args, kwargs)
        # what runs in fp32 around it takes nothing else
        return result if is_within or region.output is not None else widened(result)


class RunsForward(CastForward):
    """One that the run put there, of which the script knows nothing: a plan of the script's may lie over it."""


class OwnForward:
    """Stands in a copy or a pickle for the forward of a module's class, whose name need not be that of an attribute."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def get(self) -> Callable[..., Any]:
        """The forward."""
        return type(self.module).forward.__get__(self.module)


def kept_forward(call: Callable[..., Any]) -> OwnForward | Callable[..., Any]:
    """What is to be copied or pickled in the place of a forward."""
    module = call.__self__ if isinstance(call, MethodType) else None
    if isinstance(module, nn.Module) and call == OwnForward(module).get():
        return OwnForward(module)
    return call


def forward_kept(kept: OwnForward | Callable[..., Any]) -> Callable[..., Any]:
    """The forward that ``kept_forward`` was given, of the copied module."""
    return kept.get() if isinstance(kept, OwnForward) else kept


def _made_again(
    kind: type[CastForward],
    kept: OwnForward | Callable[..., Any],
    region: Formats | None,
    table: OpTable | None,
    *where: Any,
) -> CastForward:
    device_type, is_outermost = where
    return kind(forward_kept(kept), region=region, table=table, device_type=device_type, is_outermost=is_outermost)


def is_planned(module: nn.Module) -> bool:
    """Whether the script's own plan is in effect on the module."""
    found = cast_forward_of(module)
    return found is not None and not isinstance(found, RunsForward)


def cast_forward_of(module: nn.Module) -> CastForward | None:
    """What a plan left on the module; None where it left nothing."""
    found = vars(module).get("forward")
    return found if isinstance(found, CastForward) else None
