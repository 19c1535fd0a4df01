"""Computes what a module does by itself once more: the modules that it calls give what they gave before."""

import math
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from ampwise.compat.operators import AroundOperators, operator_of
from ampwise.compat.tree import map_tensors
from ampwise.instruments.again import set_random_state
from ampwise.observe.dtypes import dtype_name, leaf_tensors, tensors_in
from ampwise.observe.frames import Line, user_line
from ampwise.observe.functions import AroundFunctions, operator_spelt
from ampwise.observe.statistics import amax

_MISSING: Final = object()
_DECISIONS: Final = frozenset({"aten.topk", "aten.argmax", "aten.argmin", "aten.sort", "aten.max"})
_NO_RESULT: Final = frozenset({"aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided"})
"""Their memory holds whatever was there."""
_LOW: Final = frozenset({"fp16", "bf16"})
_BEYOND_MASKS: Final = 1e30
"""Masks are written as infinity or as fp32's lowest number; no result that matters is as large."""

Change = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Inner:
    """One call of another module from within: what it took and gave, and where the random numbers stood then."""

    module: nn.Module
    given: list[Tensor]
    """The floating tensors among its arguments."""
    output: Any
    random: list[Tensor]


@dataclass(slots=True)
class OwnCall:
    """A call of a module that is going on."""

    module: nn.Module
    random: list[Tensor]
    """Where the random numbers stood when it began."""
    inner: list[Inner] = field(default_factory=list)


@dataclass(slots=True)
class SeenOp:
    """An operator, and the size of what it gave."""

    name: str
    number: int
    """How many of that name ran before it."""
    dtype: str
    amax: float
    """The largest magnitude of its result; infinite or NaN if an element is."""
    failed: bool = False
    """It made infinities or NaN of finite numbers, not on purpose."""
    given: float = 0.0
    """Of an operator that failed: the largest magnitude among its operands."""
    line: Line | None = None
    function: str | None = None
    """The operator as a rule names it: ``linear`` where ``aten.addmm`` ran in ``F.linear``."""


@dataclass(slots=True)
class Alone:
    """What a module computed by itself."""

    output: Any = None
    given: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])
    """What it gave to each module that it called, by the call's number."""
    ops: list[SeenOp] = field(default_factory=list[SeenOp])
    """In order; none where they were not watched."""
    decisions: list[Tensor] = field(default_factory=list[Tensor])
    function: str | None = None
    """The one that is running, as a rule names its operator."""

    @property
    def operators(self) -> tuple[str, ...]:
        """Those that gave anything below fp32, as rules name them, in the order of their first call."""
        return tuple(dict.fromkeys(op.function for op in self.ops if op.function is not None and op.dtype in _LOW))

    @property
    def num_operators(self) -> int:
        """How many there are that a rule can name, in any format."""
        return len({op.function for op in self.ops if op.function is not None})

    def counterpart(self, op: SeenOp) -> SeenOp | None:
        """The operator of the same name and number, if this went the same way."""
        return next((one for one in self.ops if (one.name, one.number) == (op.name, op.number)), None)


def run_alone(
    call: OwnCall,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    region: AbstractContextManager[Any],
    change: Change,
    watch: bool,
) -> Alone:
    """Call the module again as it was called, without gradients; its buffers stay as they are.

    Args:
        call: The call, which has ended.
        args: What it was given; it is copied.
        kwargs: The same.
        region: The format it computes in now.
        change: Gives the copy of each tensor that it was given, or that a module within gave.
        watch: Whether the size of every operator's result is looked at.
    """
    alone = Alone()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        set_random_state(call.random)
        stack.enter_context(region)
        stack.enter_context(_stood_in_for(call.inner, change, alone))
        if watch:
            stack.enter_context(AroundFunctions(lambda func, args, kwargs: _called(alone, func, args, kwargs)))
        stack.enter_context(AroundOperators(lambda func, args, kwargs: _seen(alone, func, args, kwargs, watch=watch)))
        # in place of the buffers: autograd counts what is written to them
        buffers = {name: one.clone() for name, one in call.module.named_buffers()}
        alone.output = torch.func.functional_call(
            call.module, buffers, map_tensors(change, args), map_tensors(change, kwargs)
        )
    return alone


def floats_in(nested: Any) -> list[Tensor]:
    """The floating tensors of an output or of arguments, in order."""
    return [one for one in leaf_tensors(nested) if _is_float(one)]


@contextmanager
def _stood_in_for(inner: list[Inner], change: Change, alone: Alone) -> Generator[None]:
    """Within it, the modules give, call by call, what they gave before; what they are given is kept."""
    calls: dict[nn.Module, deque[tuple[int, Inner]]] = {}
    for number, one in enumerate(inner):
        calls.setdefault(one.module, deque()).append((number, one))
    with ExitStack() as stack:
        for module, waiting in calls.items():
            stack.callback(_put_back, module, vars(module).get("forward", _MISSING))
            module.forward = _giver(waiting, change, alone)
        yield


def _giver(waiting: "deque[tuple[int, Inner]]", change: Change, alone: Alone) -> Callable[..., Any]:
    def give(*args: Any, **kwargs: Any) -> Any:
        number, one = waiting.popleft()
        alone.given[number] = floats_in((args, kwargs))
        set_random_state(one.random)
        return map_tensors(change, one.output)

    return give


def _put_back(module: nn.Module, forward: Any) -> None:
    if forward is _MISSING:
        del module.forward
    else:
        module.forward = forward


def _called(alone: Alone, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outer, alone.function = alone.function, operator_spelt(func)
    try:
        return func(*args, **kwargs)
    finally:
        alone.function = outer


def _seen(alone: Alone, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, watch: bool) -> Any:
    operator, result = operator_of(func), func(*args, **kwargs)
    if operator.name in _DECISIONS:
        alone.decisions += [one.clone() for one in tensors_in(result) if not one.is_floating_point()][:1]
    floats = [one for one in tensors_in(result) if _is_float(one)]
    if watch and floats and not operator.is_view and operator.name not in _NO_RESULT:
        size = _largest(floats)
        seen = SeenOp(
            name=operator.name,
            number=sum(one.name == operator.name for one in alone.ops),
            dtype=dtype_name(floats[0].dtype),
            amax=size,
            function=alone.function,
        )
        if not math.isfinite(size):
            _explain(seen, [one for one in tensors_in(args, list(kwargs.values())) if _is_float(one)])
        alone.ops.append(seen)
    return result


def _explain(seen: SeenOp, operands: list[Tensor]) -> None:
    """Whether the operator is to blame; operands that it wrote to are taken for what they were."""
    seen.given = _largest(operands)
    seen.failed = bool(operands) and seen.given < _BEYOND_MASKS
    seen.line = user_line(2)


def _largest(tensors: list[Tensor]) -> float:
    return max((amax(one).item() for one in tensors), key=fear, default=0.0)


def fear(size: float) -> float:
    """The size to rank by: what is no number is the worst."""
    return math.inf if math.isnan(size) else size


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta
