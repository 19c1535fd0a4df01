"""Computes one batch twice, in a low format and in fp32, and compares module by module."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from ampwise.compat.operators import AroundOperators, operator_of
from ampwise.compat.stance import has_dynamo, run_uncompiled
from ampwise.instruments.again import kept_buffers, kept_random_state, random_state, set_random_state
from ampwise.instruments.closeness import HALVES, Values, module_error, values_of, widened
from ampwise.interpose.internal import announced, internal, is_internal
from ampwise.interpose.own_amp import hold_off_autocast
from ampwise.observe.dtypes import dtype_name, tensors_in
from ampwise.observe.events import EventBus, ForwardStarted, StepOutcome
from ampwise.observe.frames import Line, user_line
from ampwise.observe.modules import Call, ModuleName, ModuleNames, ModuleStack, unwrapped
from ampwise.records.against_fp32 import AgainstFp32Record, Flip, ModuleError

_CASTS_ITSELF: Final = (
    "not compared: {kind} computed in {format} both times, for it casts by itself what it is given, and not by autocast"
)
_DECISIONS: Final = frozenset({"aten.topk", "aten.argmax", "aten.argmin", "aten.sort", "aten.multinomial", "aten.max"})
Region = Callable[[], AbstractContextManager[Any]]
"""Makes the context in which a model computes in one format."""


@dataclass(slots=True)
class _Pass:
    """What one computation of the batch showed."""

    outputs: dict[tuple[ModuleName, int], Values] = field(default_factory=dict)
    decisions: dict[tuple[ModuleName | None, str, Line | None], list[Tensor]] = field(
        default_factory=lambda: defaultdict(list)
    )


class AgainstFp32:
    """Compares one step's forward in a low format with fp32, while entered.

    Before the first outermost call of step ``step``, the model is called twice more with that call's arguments, from
    the same random numbers, once within ``low`` and once within ``high``; buffers stay as they were and no gradient is
    computed. Weights and inputs of half precision are widened for the fp32 call. The first floating tensor of every
    module's output is kept in fp32 until both calls are compared, which takes memory. Where a model switches autocast
    on by itself, in its forward, as Accelerate makes them do, it stays off in the fp32 call.

    Args:
        bus: Where the loop's events are published.
        low: Makes the context of the low format: ``nullcontext`` where the loop is in it as it calls the model.
        high: Makes the context of fp32, such as autocast switched off.
        step: Index of the step, in the order steps end.
        format: The low format's name; None takes the narrowest that an output has.
        names: Of the modules; by default its own.
    """

    def __init__(
        self,
        bus: EventBus,
        *,
        low: Region,
        high: Region,
        step: int = 1,
        format: str | None = None,  # noqa: A002 # what it is called everywhere here
        names: ModuleNames | None = None,
    ) -> None:
        self._bus = bus
        self._low, self._high = low, high
        self._wanted = step
        self._format = format
        self._stack = ModuleStack(names, listeners=(self,))
        self._undo = ExitStack()
        self._pass: _Pass | None = None
        self._step = 0
        self._is_done = False
        self._errors: list[ModuleError] = []
        self._flips: list[Flip] = []
        self._cost_s = 0.0
        self._note: str | None = None

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(ForwardStarted, self._on_forward))
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return frozenset({self._wanted} if self._is_done else ())

    def record(self) -> AgainstFp32Record | None:
        """What the comparison showed; None where the run ended before its step."""
        if not self._is_done:
            return None
        widths = {"bf16": 0, "fp16": 1}
        seen = sorted({one.dtype for one in self._errors} & widths.keys(), key=widths.__getitem__)
        return AgainstFp32Record(
            format=self._format or (seen[-1] if seen else "fp32"),
            step=self._wanted,
            modules=tuple(self._errors),
            flips=tuple(self._flips),
            cost_ms=self._cost_s * 1_000,
            note=self._note,
        )

    def entered(self, call: Call, args: tuple[Any, ...]) -> None:
        """A module is about to be called; only what it gives counts."""

    def left(self, call: Call, args: tuple[Any, ...], output: Any) -> None:
        """Keep what a module gave in the computation that is going on."""
        name = self._stack.names.name_of(call.module)
        values = values_of(output, args)
        if self._pass is not None and name is not None and values is not None:
            number = sum(one is name for one, _ in self._pass.outputs)
            self._pass.outputs[name, number] = values

    def _on_step(self, _: StepOutcome) -> None:
        self._step += 1

    def _on_forward(self, event: ForwardStarted) -> None:
        if self._is_done or self._step != self._wanted or is_internal() or not torch.is_grad_enabled():
            return
        self._is_done = True
        start = time.perf_counter()
        try:
            self._compare(unwrapped(event.module), event.args, event.kwargs)
        except Exception as error:  # noqa: BLE001 # comparing must not end somebody's training
            self._note = f"not compared: {type(error).__name__}: {error}"
        self._cost_s += time.perf_counter() - start

    def _compare(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with ExitStack() as stack:
            if has_dynamo():
                stack.callback(run_uncompiled())
            stack.enter_context(announced())
            stack.enter_context(torch.no_grad())
            stack.enter_context(kept_random_state())
            stack.enter_context(kept_buffers(module))
            stack.enter_context(self._stack)
            state = random_state()
            low = self._run(module, args, kwargs, self._low)
            set_random_state(state)
            stack.callback(hold_off_autocast())
            high = self._run(_Widened(module), widened(args), widened(kwargs), self._high)
        format_ = _stayed_low(low, high)
        if format_ is not None:
            self._note = _CASTS_ITSELF.format(kind=type(module).__name__, format=format_)
            return
        with internal():
            self._errors = list(_errors(low, high))
            self._flips = list(_flips(low, high))

    def _run(self, module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], region: Region) -> _Pass:
        self._pass = current = _Pass()
        try:
            with region(), AroundOperators(self._decide):
                module(*args, **kwargs)
        finally:
            self._pass = None
        return current

    def _decide(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = operator_of(func).name
        if name in _DECISIONS and self._pass is not None:
            whole = [one for one in tensors_in(result) if not one.is_floating_point()]
            key = (self._stack.name, name, user_line(1))
            self._pass.decisions[key] += [one.clone() for one in whole[:1]]
        return result


class _Widened:
    """Calls a module with its weights and buffers in fp32, which stay as they are."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._values = {name: widened(one.detach().clone()) for name, one in held.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(self._module, self._values, args, kwargs)


def _stayed_low(low: _Pass, high: _Pass) -> str | None:
    """The low format in which every module that computed in it did so again where fp32 was asked for."""
    halves = {key: one.dtype for key, one in low.outputs.items() if one.dtype in HALVES}
    others = {key: one.dtype for key, one in high.outputs.items()}
    is_low = bool(halves) and all(others.get(key) is dtype for key, dtype in halves.items())
    return dtype_name(next(iter(halves.values()))) if is_low else None


def _errors(low: _Pass, high: _Pass) -> Iterator[ModuleError]:
    for (name, number), mine in low.outputs.items():
        other = high.outputs.get((name, number))
        if other is not None and other.output.shape == mine.output.shape:
            yield module_error(mine, other, module=name.path, module_kind=name.kind, call=number)


def _flips(low: _Pass, high: _Pass) -> Iterator[Flip]:
    for (name, op, line), mine in low.decisions.items():
        both = zip(mine, high.decisions.get((name, op, line), ()), strict=False)
        pairs = [(one, other) for one, other in both if one.shape == other.shape]
        if pairs:
            yield Flip(
                module=name.path if name is not None else "",
                op=op,
                file=line.shown_file if line is not None else None,
                line=line.line if line is not None else None,
                num_decisions=sum(one.numel() for one, _ in pairs),
                num_flipped=sum(int((one != other).sum()) for one, other in pairs),
            )
