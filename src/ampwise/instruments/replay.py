"""Keeps what a step's forward was given, and runs forward and backward once more under the eyes of an origin finder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ampwise.compat.distributed import ddp_of, is_fsdp1, is_sharded
from ampwise.compat.operators import AroundOperators, is_collective, operator_of
from ampwise.compat.stance import has_dynamo, run_uncompiled
from ampwise.instruments.again import kept_buffers, kept_random_state, random_state, set_random_state
from ampwise.instruments.origins import OriginFinder
from ampwise.interpose.internal import announced
from ampwise.observe.dtypes import leaf_tensors
from ampwise.observe.modules import unwrapped

_MAX_CALLS = 8
"""More outermost calls than this of one step are not kept: their inputs stay alive."""


@dataclass(slots=True, kw_only=True)
class _Call:
    """An outermost module's call, and the gradients that came back to what it gave."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: list[torch.Tensor]
    autocast: list[tuple[str, bool, torch.dtype]]
    outputs: list[torch.Tensor | None] = field(default_factory=list)
    """The gradient of each floating output that needs one."""
    handles: list[Any] = field(default_factory=list)


class InCompanyError(Exception):
    """A model cannot be run again by one process alone."""

    def __init__(self) -> None:
        super().__init__("other processes take part in it")


class Replay:
    """The outermost calls of one step.

    It keeps their inputs and the gradients of their outputs alive until the step's end.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self.is_complete = True
        """Whether every call of the step is kept."""

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember a call that is about to be made."""
        if len(self._calls) >= _MAX_CALLS:
            self.is_complete = False
            return
        self._calls.append(
            _Call(module=module, args=args, kwargs=kwargs, random=random_state(), autocast=list(_autocast()))
        )

    def end(self, module: nn.Module, output: Any) -> None:
        """Remember where the gradients of what a call gave will come back."""
        call = self._calls[-1] if self._calls else None
        if call is None or call.module is not module or call.outputs:
            return
        for place, tensor in enumerate(_differentiable(output)):
            call.outputs.append(None)
            call.handles.append(tensor.register_hook(_keeper(call.outputs, place)))

    def clear(self) -> None:
        """Let go of what was kept."""
        for call in self._calls:
            for handle in call.handles:
                handle.remove()
        self._calls.clear()
        self.is_complete = True

    def run(self, finder: OriginFinder) -> None:
        """Make the calls again, uncompiled, from the same random numbers; weights, buffers and gradients stay so.

        What the loop did between and after the calls, such as the loss, is not run again. Of
        DistributedDataParallel the model within is, in which the other processes take no part.

        Raises:
            InCompanyError: they would have to take part.
        """
        with ExitStack() as stack:
            if has_dynamo():
                stack.callback(run_uncompiled())
            stack.enter_context(announced())
            stack.enter_context(kept_random_state())
            mode = AroundOperators(lambda func, args, kwargs: _look(finder, func, args, kwargs))
            _refuse_company([call.module for call in self._calls])
            for call in self._calls:
                _run_again(call, mode)


def _refuse_company(modules: list[nn.Module]) -> None:
    """Refuse models whose parts agree with other processes: those do not run it again, and would be waited for.

    Raises:
        InCompanyError: one of them does.
    """
    inner = [unwrapped(module) for module in modules]
    parameters = [one for module in inner for one in module.parameters()]
    if ddp_of(inner) or any(is_sharded(one) or is_fsdp1(one) for one in parameters):
        raise InCompanyError


def _look(finder: OriginFinder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if is_collective(func):
        raise InCompanyError
    return finder.around(operator_of(func), func, args, kwargs)


def _run_again(call: _Call, mode: AroundOperators) -> None:
    module = unwrapped(call.module)
    with kept_buffers(module):  # until the end of backward, which refuses buffers that were put back before
        with ExitStack() as stack:
            for device, enabled, dtype in call.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False))
            set_random_state(call.random)
            stack.enter_context(mode)
            with torch.enable_grad():
                output = module(*call.args, **call.kwargs)
        pairs = zip(_differentiable(output), call.outputs, strict=False)
        known = [(tensor, gradient) for tensor, gradient in pairs if gradient is not None]
        parameters = [one for one in module.parameters() if one.requires_grad]
        if known and parameters:
            roots, seeds = zip(*known, strict=True)
            with mode:
                torch.autograd.grad(roots, parameters, seeds, allow_unused=True)


def _keeper(outputs: list[torch.Tensor | None], place: int) -> Callable[[torch.Tensor], None]:
    def keep(gradient: torch.Tensor) -> None:
        outputs[place] = gradient

    return keep


def _differentiable(output: Any) -> list[torch.Tensor]:
    """The tensors of an output that a gradient comes back to, whatever they are nested in."""
    return [one for one in leaf_tensors(output) if one.requires_grad and one.is_floating_point()]


def _autocast() -> Iterator[tuple[str, bool, torch.dtype]]:
    for device in _devices():
        yield device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]
