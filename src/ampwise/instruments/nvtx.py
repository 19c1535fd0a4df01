"""Marks steps, passes, modules and casts as NVTX ranges, which Nsight Systems shows beside the GPU's kernels."""

import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, Self

from ampwise._base.errors import CannotRunError
from ampwise.compat.operators import Operator
from ampwise.observe.dtypes import dtype_name
from ampwise.observe.events import BackwardEnded, BackwardStarted, EventBus, StepOutcome, StepStarted
from ampwise.observe.modules import Call, ModuleNames, ModuleStack
from ampwise.observe.operators import OperatorSampler


class Nvtx(Protocol):
    """What is used of ``torch.cuda.nvtx``."""

    def range_push(self, msg: str) -> int:
        """Begin a range within this thread's innermost one."""
        ...

    def range_pop(self) -> int:
        """End this thread's innermost range."""
        ...

    def range_start(self, msg: str) -> int:
        """Begin a range that lies in no other; its number."""
        ...

    def range_end(self, range_id: int) -> None:
        """End the range of that number."""
        ...


class NvtxMarks:
    """Marks each step, backward pass, optimizer step, module's forward and cast, while entered; records nothing.

    To see casts every operator passes through Python, some 3 us each of the host's time; what compiled code casts is
    not seen. Law: every range that is begun is ended, in its own thread, also where a module raised.

    Args:
        bus: Where the loop's events are published.
        names: Says what modules are called; by default it finds out on its own.
        nvtx: What marks; ``torch.cuda.nvtx`` by default.

    Raises:
        CannotRunError: on entering, where torch was built without NVTX.
    """

    def __init__(self, bus: EventBus, *, names: ModuleNames | None = None, nvtx: Nvtx | None = None) -> None:
        self._bus = bus
        self._nvtx = nvtx or _torchs_nvtx()
        self._stack = ModuleStack(names, listeners=(self,))
        self._sampler = OperatorSampler(bus, self, steps=None, stack=self._stack)
        self._undo = ExitStack()
        self._thread = _Open()
        self._num_steps = 0
        self._step: int | None = None

    def __enter__(self) -> Self:
        _check(self._nvtx)
        listeners: dict[type[Any], Callable[[Any], None]] = {
            BackwardStarted: lambda _: self._begin("backward"),
            BackwardEnded: lambda _: self._end(),
            StepStarted: lambda _: self._begin("optimizer"),
            StepOutcome: self._on_step,
        }
        for kind, listener in listeners.items():
            self._undo.callback(self._bus.subscribe(kind, listener))
        self._undo.enter_context(self._stack)
        self._undo.enter_context(self._sampler)
        self._begin_step()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
        self._end_all()
        self._end_step()

    def entered(self, call: Call, args: tuple[Any, ...]) -> None:
        """A module is about to be called."""
        del args
        depth = len(self._stack.calls)
        self._end_modules(depth - 1)
        name = call.name.path if call.name is not None else type(call.module).__name__
        self._push(name or "model", depth)

    def left(self, call: Call, args: tuple[Any, ...], output: Any) -> None:
        """A module has returned."""
        del call, args, output
        self._end_modules(len(self._stack.calls))

    def around(self, operator: Operator, proceed: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, within a range of its own if it is a cast."""
        name = _cast_name(operator, args, kwargs)
        if name is None:
            return proceed(*args, **kwargs)
        self._nvtx.range_push(name)
        try:
            return proceed(*args, **kwargs)
        finally:
            self._nvtx.range_pop()

    def _begin(self, name: str) -> None:
        self._end_modules(len(self._stack.calls))
        self._push(name, None)

    def _end(self) -> None:
        """End the innermost range that is no module's, with what is open within it."""
        while self._thread.open and self._pop() is not None:
            pass

    def _end_modules(self, depth: int) -> None:
        """End the ranges of modules called deeper than that: they returned, or they raised, which nobody tells."""
        while self._thread.open and (self._thread.open[-1] or 0) > depth:
            self._pop()

    def _push(self, name: str, depth: int | None) -> None:
        self._nvtx.range_push(name)
        self._thread.open.append(depth)

    def _pop(self) -> int | None:
        self._nvtx.range_pop()
        return self._thread.open.pop()

    def _end_all(self) -> None:
        while self._thread.open:
            self._pop()

    def _on_step(self, _: StepOutcome) -> None:
        self._end_all()
        self._end_step()
        self._num_steps += 1
        self._begin_step()

    def _begin_step(self) -> None:
        self._step = self._nvtx.range_start(f"step {self._num_steps}")

    def _end_step(self) -> None:
        if self._step is not None:
            self._nvtx.range_end(self._step)
            self._step = None


def _cast_name(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """``cast fp32 to bf16``; None where numbers keep their format, or are no floating-point numbers."""
    target = kwargs.get("dtype")
    if operator.name != "aten._to_copy" or target is None or target is args[0].dtype:
        return None
    is_float = target.is_floating_point and args[0].dtype.is_floating_point
    return f"cast {dtype_name(args[0].dtype)} to {dtype_name(target)}" if is_float else None


def nsys_command(command: Sequence[str]) -> str:
    """What to type to see a script's ranges: ``nsys profile ... ampwise run --nvtx train.py``."""
    return f"nsys profile --trace=cuda,nvtx --output=profile ampwise run --nvtx {shlex.join(command)}"


class _Open(threading.local):
    """The ranges this thread is within: of a module, how deep it is called; None for another."""

    def __init__(self) -> None:
        self.open: list[int | None] = []


def _torchs_nvtx() -> Nvtx:
    from torch.cuda import nvtx

    return nvtx


def _check(nvtx: Nvtx) -> None:
    try:
        nvtx.range_push("ampwise")
        nvtx.range_pop()
    except RuntimeError as error:
        raise CannotRunError(
            "--nvtx: this torch was built without NVTX, as torch for CPUs is; run it with a torch that has CUDA"
        ) from error
