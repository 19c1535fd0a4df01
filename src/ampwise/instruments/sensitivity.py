"""Measures in an fp32 run what each module alone would do to the loss, were it computed in a low format.

Each module that returns is computed twice more, with the modules it calls standing still (``alone.py``): in the low
format and in fp32, from the same inputs, held as the low format's run would hold them. The difference is the error that
this module adds. Times the gradient that comes back to its output, squared and summed, it ranks modules by the harm
they would do (the first-order change of the loss, as ADAPT and ModelOpt estimate it).
"""

import math
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

import torch
from torch import Tensor, nn

from ampwise.compat.modules import after_every_forward
from ampwise.compat.stance import has_dynamo, run_uncompiled
from ampwise.instruments.again import kept_random_state, random_state
from ampwise.instruments.alone import Alone, Inner, OwnCall, fear, floats_in, run_alone
from ampwise.instruments.closeness import num_distinct, relative_error, rows_of
from ampwise.interpose.internal import internal, is_internal
from ampwise.observe.events import EventBus, ForwardStarted, StepOutcome
from ampwise.observe.modules import Call, ModuleName, ModuleStack, unwrapped
from ampwise.observe.statistics import amax
from ampwise.records.sensitivity import ModuleSensitivity, RangeFault, SensitivityRecord

STEPS: Final = (0, 3)
"""Steps that are measured: weights as they begin, and when they have moved."""
_TOGETHER: Final = 0.05
"""Rows of few numbers may be equal after rounding; those are a rounding away from fp32."""


class Rehearsal(AbstractContextManager[Any], Protocol):
    """How a module is computed in the low format by itself, while it is entered."""

    @property
    def format(self) -> str:
        """The low format, as users say it."""
        ...

    def __call__(self, module: nn.Module, name: ModuleName) -> AbstractContextManager[Any]:
        """The context in which ``module``, called alone, computes in the low format."""
        ...


@dataclass(slots=True)
class _Tally:
    """What was measured of one module so far."""

    name: ModuleName
    aliases: tuple[str, ...]
    num_calls: int = 0
    calls_modules: bool = False
    scores: list[Tensor] = field(default_factory=list[Tensor])
    has_gradient: bool = False
    """One of its outputs has one, but no error."""
    relative: float = 0.0
    amax: float = 0.0
    num_decisions: int = 0
    num_other_decisions: int = 0
    fell_together: bool = False
    fault: RangeFault | None = None

    def finished(self) -> ModuleSensitivity:
        return ModuleSensitivity(
            module=self.name.path,
            module_kind=self.name.kind,
            aliases=tuple(self.name.path.removesuffix(self.name.inner) + alias for alias in self.aliases),
            calls_modules=self.calls_modules,
            num_calls=self.num_calls,
            score=math.fsum(score.item() for score in self.scores) if self.scores or self.has_gradient else None,
            relative=self.relative,
            amax=self.amax,
            num_decisions=self.num_decisions,
            num_other_decisions=self.num_other_decisions,
            fell_together=self.fell_together,
            fault=self.fault,
        )


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
        self._tallies: dict[ModuleName, _Tally] = {}
        self._dtypes: dict[int, tuple[weakref.ref[Tensor], torch.dtype]] = {}
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
        return SensitivityRecord(
            format=self._rehearsal.format,
            steps=tuple(self._seen),
            modules=modules,
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

    def _on_forward(self, _: ForwardStarted) -> None:
        """Compiled code calls no module that could be seen: run it uncompiled, where anything is compiled by now."""
        if not self._is_uncompiled and has_dynamo():
            self._is_uncompiled = True
            self._attached.callback(run_uncompiled())

    def _forget(self) -> None:
        self._open.clear()
        self._dtypes.clear()

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
        start = time.perf_counter()
        self._is_busy = True
        try:
            with internal(), kept_random_state():
                self._compare(call, name, args, kwargs, output)
        except Exception as error:  # noqa: BLE001 # measuring must not end somebody's training
            self._note = self._note or f"{name.path}: not measured: {type(error).__name__}: {error}"
            self._tally(call, name)
        finally:
            self._is_busy = False
        self._cost_s += time.perf_counter() - start

    def _compare(
        self, call: OwnCall, name: ModuleName, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        low = run_alone(call, args, kwargs, region=self._rehearsal(call.module, name), change=self._lowered, watch=True)
        has_failed = any(op.failed for op in low.ops)
        high = run_alone(call, args, kwargs, region=nullcontext(), change=self._rounded, watch=has_failed)
        tally = self._tally(call, name)
        tally.num_calls += 1
        tally.fault = tally.fault or _fault(low, high, self._step)
        for number, one in enumerate(call.inner):
            self._add(tally, one.given, low.given.get(number, []), high.given.get(number, []))
        own, mine = floats_in(output), floats_in(low.output)
        self._add(tally, own, mine, floats_in(high.output))
        _add_decisions(tally, low, high)
        for one, made in zip(own, mine, strict=False):
            if made.dtype is not one.dtype and bool(made.isfinite().all()):
                self._dtypes[id(one)] = (weakref.ref(one), made.dtype)

    def _add(self, tally: _Tally, own: Sequence[Tensor], low: Sequence[Tensor], high: Sequence[Tensor]) -> None:
        """What the module gave, to its caller or to a module within: how far it is off, and what that does."""
        for tensor, mine, other in zip(own, low, high, strict=False):
            if not mine.shape == other.shape == tensor.shape:
                continue
            mine, other = mine.float(), other.float()  # noqa: PLW2901 # as they are compared
            tally.amax = max(tally.amax, amax(other).item(), key=fear)
            if not torch.equal(mine, other):
                _add_error(tally, mine, other)
                if tensor.requires_grad:
                    tensor.register_hook(_scored(tally, mine - other))
            elif tensor.requires_grad:
                tally.has_gradient = True

    def _tally(self, call: OwnCall, name: ModuleName) -> _Tally:
        tally = self._tallies.get(name)
        if tally is None:
            tally = self._tallies[name] = _Tally(name, self._other_paths(call.module, name))
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

    def _lowered(self, tensor: Tensor) -> Tensor:
        """A copy, in the dtype that the low format's run would hold it in."""
        dtype = self._dtype_of(tensor)
        return tensor.detach().clone() if dtype is None else tensor.detach().to(dtype)

    def _rounded(self, tensor: Tensor) -> Tensor:
        """The same numbers in the tensor's own dtype."""
        return self._lowered(tensor).to(tensor.dtype)

    def _dtype_of(self, tensor: Tensor) -> torch.dtype | None:
        reference, dtype = self._dtypes.get(id(tensor), (None, None))
        return dtype if reference is not None and reference() is tensor else None


def _fault(low: Alone, high: Alone, step: int) -> RangeFault | None:
    """The first operator that left the low format's range where fp32 stayed in its own."""
    for op in low.ops:
        other = high.counterpart(op)
        if not op.failed or (other is not None and not math.isfinite(other.amax)):
            continue
        is_cast = op.name == "aten._to_copy"
        return RangeFault(
            op=op.name,
            format=op.dtype,
            amax=op.given if is_cast else other.amax if other is not None else None,
            step=step,
            file=op.line.shown_file if op.line is not None else None,
            line=op.line.line if op.line is not None else None,
        )
    return None


def _add_error(tally: _Tally, mine: Tensor, other: Tensor) -> None:
    relative = relative_error(mine, other)
    tally.relative = max(tally.relative, relative, key=fear)
    rows = [rows_of(one) for one in (mine, other)]
    if rows[0] is not None and rows[1] is not None and relative >= _TOGETHER:
        few, many = map(num_distinct, rows)
        tally.fell_together |= few is not None and many is not None and many >= 4 and 2 * few <= many


def _add_decisions(tally: _Tally, low: Alone, high: Alone) -> None:
    for one, same in zip(low.decisions, high.decisions, strict=False):
        if one.shape == same.shape:
            tally.num_decisions += one.numel()
            tally.num_other_decisions += int((one != same).sum())


def _scored(tally: _Tally, error: Tensor) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        with internal():
            tally.scores.append((gradient.detach().float() * error).square().sum())

    return keep
