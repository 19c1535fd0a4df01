"""Measures in an fp32 run what each module alone would do to the loss, were it computed in a low format.

Each module that returns is computed twice more, with the modules it calls standing still (``alone.py``): in the low
format and in fp32, from the same inputs, held as the low format's run would hold them. The difference is the error that
this module adds. Times the gradient that comes back to its output, squared and summed, it ranks modules by the harm
they would do (the first-order change of the loss, as ADAPT and ModelOpt estimate it).
"""

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final, Protocol, Self

import torch
from torch import nn

from ampwise.compat.modules import after_every_forward
from ampwise.compat.stance import has_dynamo, run_uncompiled
from ampwise.instruments.again import kept_random_state, random_state
from ampwise.instruments.alone import Alone, Inner, OwnCall, floats_in, run_alone
from ampwise.instruments.isolate import failed_op, isolate
from ampwise.instruments.outside import Outside
from ampwise.instruments.tally import Held, Tally
from ampwise.interpose.internal import internal, is_internal
from ampwise.observe.events import EventBus, ForwardStarted, StepOutcome
from ampwise.observe.functions import AroundFunctions
from ampwise.observe.modules import Call, ModuleName, ModuleStack, unwrapped
from ampwise.records.sensitivity import RangeFault, SensitivityRecord

STEPS: Final = (0, 3)
"""Steps that are measured: weights as they begin, and when they have moved."""


class Rehearsal(AbstractContextManager[Any], Protocol):
    """How a module is computed in the low format by itself, while it is entered."""

    @property
    def format(self) -> str:
        """The low format, as users say it."""
        ...

    def __call__(
        self, module: nn.Module, name: ModuleName, *, lifted: tuple[str, ...] = ()
    ) -> AbstractContextManager[Any]:
        """The context in which ``module``, called alone, computes in the low format, but ``lifted`` in fp32."""
        ...

    def outside(self) -> AbstractContextManager[Any]:
        """The context in which an operator outside of all modules computes in the low format."""
        ...


class Sensitivity:
    """Measures modules one by one in a low format on a few steps of a loop in fp32, while entered.

    The loop's own numbers stay as they are: what is computed again has no gradient, and leaves random numbers and
    buffers as they were. Compiled code runs as plain Python in those steps. Takes, in those steps, three times their
    forward pass, and the memory of every module's output once more.

    Args:
        bus: Where the loop's events are published.
        rehearsal: Puts one module into the low format.
        steps: Which steps are measured, by the order they end in.
        stack: Of the modules being called; its names are used.
    """

    def __init__(
        self, bus: EventBus, *, rehearsal: Rehearsal, steps: tuple[int, ...] = STEPS, stack: ModuleStack | None = None
    ) -> None:
        self._bus = bus
        self._rehearsal = rehearsal
        self._wanted = steps
        self._names = (stack or ModuleStack()).names
        self._stack = ModuleStack(self._names, listeners=(self,))
        self._undo = ExitStack()
        self._attached = ExitStack()
        self._step = 0
        self._seen: list[int] = []
        self._open: list[OwnCall] = []
        self._tallies: dict[ModuleName, Tally] = {}
        self._held = Held()
        self._outside = Outside(rehearsal.outside, self._held)
        self._is_busy = False
        self._is_uncompiled = False
        self._cost_s = 0.0
        self._note: str | None = None

    def __enter__(self) -> Self:
        self._undo.enter_context(self._rehearsal)
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        self._undo.callback(self._attached.close)
        self._attach_if_due()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return frozenset(self._seen)

    def record(self) -> SensitivityRecord:
        """What was measured so far; waits for the device."""
        with internal():
            modules = tuple(tally.finished() for tally in self._tallies.values())
            outside = self._outside.record()
        return SensitivityRecord(
            format=self._rehearsal.format,
            steps=tuple(self._seen),
            modules=modules,
            outside=outside,
            cost_ms=self._cost_s * 1_000,
            note=self._note,
        )

    def entered(self, call: Call, args: tuple[Any, ...]) -> None:  # noqa: ARG002 # the listener's signature
        """A module is about to be called."""
        if not self._is_busy:
            self._open.append(OwnCall(call.module, random_state()))

    def left(self, call: Call, args: tuple[Any, ...], output: Any) -> None:
        """A module has returned: torch's hook with its keywords tells more."""

    def _on_step(self, _: StepOutcome) -> None:
        if self._step in self._wanted:
            self._seen.append(self._step)
            self._attached.close()
        self._step += 1
        self._attach_if_due()

    def _attach_if_due(self) -> None:
        if self._step not in self._wanted:
            return
        self._is_uncompiled = False
        self._attached.callback(self._bus.subscribe(ForwardStarted, self._on_forward))
        self._attached.callback(self._forget)
        self._attached.enter_context(self._stack)
        self._attached.callback(after_every_forward(self._after))
        self._attached.callback(AroundFunctions(self._around).start().stop)

    def _on_forward(self, _: ForwardStarted) -> None:
        """Compiled code calls no module that could be seen: run it uncompiled, where anything is compiled by now."""
        if not self._is_uncompiled and has_dynamo():
            self._is_uncompiled = True
            self._attached.callback(run_uncompiled())

    def _forget(self) -> None:
        self._open.clear()
        self._held.forget()

    def _around(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of torch's is called: outside of all modules, what it would do in the low format is measured."""
        if self._is_busy or self._open or is_internal():
            return func(*args, **kwargs)
        op = self._outside.operator(func, args, kwargs)
        result = func(*args, **kwargs)
        if op is not None and torch.is_grad_enabled():
            with self._measuring(op):
                self._outside.measure(op, func, args, kwargs, result, step=self._step)
        return result

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """What a module gave is computed again; one that raised is not told of, and leaves its call open."""
        if torch.compiler.is_dynamo_compiling() or self._is_busy or is_internal():
            return
        while self._open and self._open[-1].module is not module:
            self._open.pop()
        if not self._open:
            return
        call = self._open.pop()
        name = self._names.name_of(module)
        if name is not None and torch.is_grad_enabled():
            self._measure(call, name, args, kwargs, output)
        if self._open:
            self._open[-1].inner.append(Inner(module, floats_in((args, kwargs)), output, random_state()))

    def _measure(
        self, call: OwnCall, name: ModuleName, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self._tally(call, name)
        with self._measuring(name.path):
            self._compare(call, name, args, kwargs, output)

    @contextmanager
    def _measuring(self, what: str) -> Generator[None]:
        """Around what is computed again: it leaves nothing behind, and ends nobody's training."""
        start = time.perf_counter()
        self._is_busy = True
        try:
            with internal(), kept_random_state():
                yield
        except Exception as error:  # noqa: BLE001 # measuring must not end somebody's training
            where = what or "the model itself"
            self._note = self._note or f"{where}: not measured: {type(error).__name__}: {error}"
        finally:
            self._is_busy = False
        self._cost_s += time.perf_counter() - start

    def _compare(
        self, call: OwnCall, name: ModuleName, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        low = run_alone(
            call, args, kwargs, region=self._rehearsal(call.module, name), change=self._held.lowered, watch=True
        )
        has_failed = any(op.failed for op in low.ops)
        high = run_alone(call, args, kwargs, region=nullcontext(), change=self._held.rounded, watch=has_failed)
        tally = self._tally(call, name)
        tally.errors.num_calls += 1
        is_new_fault = tally.errors.fault is None
        tally.errors.fault = tally.errors.fault or _fault(low, high, self._step)
        is_new_fault = is_new_fault and tally.errors.fault is not None
        tally.operators |= dict.fromkeys(low.operators)
        tally.num_operators = max(tally.num_operators, low.num_operators)
        if low.operators and low.num_operators > 1 and (is_new_fault or tally.isolated_step != self._step):
            self._isolate(tally, low, high, call, args, kwargs)
        for number, one in enumerate(call.inner):
            tally.errors.add(one.given, low.given.get(number, []), high.given.get(number, []))
        own, mine = floats_in(output), floats_in(low.output)
        tally.errors.add(own, mine, floats_in(high.output))
        tally.add_decisions(low, high)
        self._held.remember(own, mine)

    def _isolate(
        self, tally: Tally, low: Alone, high: Alone, call: OwnCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Find the operators at fault: once a step and where a fault is first seen, for it takes a call an operator."""

        def lift(operators: tuple[str, ...]) -> Alone:
            region = self._rehearsal(call.module, tally.name, lifted=operators)
            return run_alone(call, args, kwargs, region=region, change=self._held.lowered, watch=True)

        tally.isolated_step = self._step
        found = isolate(low, high, lift)
        tally.isolated += [] if found is None else [found]

    def _tally(self, call: OwnCall, name: ModuleName) -> Tally:
        tally = self._tallies.get(name)
        if tally is None:
            tally = self._tallies[name] = Tally(name, self._other_paths(call.module, name))
        tally.calls_modules = tally.calls_modules or bool(call.inner)
        return tally

    def _other_paths(self, module: nn.Module, name: ModuleName) -> tuple[str, ...]:
        """Where else a module hangs in the model that is being called."""
        root = unwrapped(self._open[0].module if self._open else module)
        root_name = self._names.name_of(root)
        if root_name is None or root_name.inner:
            return ()
        paths = (path for path, one in root.named_modules(remove_duplicate=False) if one is module)
        return tuple(path for path in paths if path != name.inner)


def _fault(low: Alone, high: Alone, step: int) -> RangeFault | None:
    op = failed_op(low, high)
    if op is None:
        return None
    other = high.counterpart(op)
    is_cast = op.name == "aten._to_copy"
    return RangeFault(
        op=op.name,
        format=op.dtype,
        amax=op.given if is_cast else other.amax if other is not None else None,
        step=step,
        file=op.line.shown_file if op.line is not None else None,
        line=op.line.line if op.line is not None else None,
    )
