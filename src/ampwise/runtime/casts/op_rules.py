"""Carries a plan's rules on operators out: a function mode that casts what goes into the operators they name.

The mode is entered inside the forward of the modules it holds for, so it needs nothing global: threads do not meet,
and a forward that is run again for its activations, in whichever thread, enters it again. Composites are one call to
it: what runs inside ``F.multi_head_attention_forward`` or a C++ function follows the rule on the composite, if any.
"""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ampwise.compat.functions import functions_of, without_modes, writes_in_place
from ampwise.plan.names import spellings
from ampwise.runtime.casts.autocast_calls import call_without
from ampwise.runtime.casts.cast_values import LOW, cast_to, device_type_of, widened, with_gradient_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """What a rule asks for at one place."""

    compute: torch.dtype
    output: torch.dtype | None = None
    grad: str | None = None


_UNCAST = frozenset({int, float, bool, type(None)})
"""Arguments that nothing is cast in, and that most calls have beside their tensors."""
Entries = frozenset[tuple[str, Formats | None]]
"""Operators by name; None shields one from the rules of the modules around: it does what autocast does."""


class OpTable:
    """What holds for each function that spells an operator some rule names.

    Tables of equal entries are one object, also after a copy and in another process.
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.formats: Mapping[Any, Formats | None] = {
            function: formats for name, formats in entries for function in _functions(name)
        }
        self.in_place = frozenset(filter(writes_in_place, self.formats))

    @property
    def operators(self) -> frozenset[str]:
        """The operators that it is about."""
        return frozenset(name for name, _ in self.entries)

    def __reduce__(self) -> tuple[Callable[[Entries], Self], tuple[Entries]]:
        return table_of, (self.entries,)  # pyright: ignore[reportReturnType]

    def __repr__(self) -> str:
        return f"OpTable({', '.join(sorted(name for name, _ in self.entries))})"


@cache
def table_of(entries: Entries) -> OpTable:
    """The one table that holds these entries."""
    return OpTable(entries)


def is_known(operator: str) -> bool:
    """Whether anything of torch's, or anything registered with torch, spells the operator."""
    return bool(_functions(operator))


class _Scope(threading.local):
    """Which table holds in this thread."""

    def __init__(self) -> None:
        self.table: OpTable | None = None  # an attribute of each thread's own: a class's would fail Dynamo's guards


_SCOPE = _Scope()


def run_under(table: OpTable, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call with ``table`` in force in this thread, and no other."""
    outer = _SCOPE.table
    if outer is table:
        return call(*args, **kwargs)
    _SCOPE.table = table
    try:
        with _OpMode(table, is_within=outer is not None):
            return call(*args, **kwargs)
    finally:
        _SCOPE.table = outer


@contextmanager
def in_force(table: OpTable) -> Generator[None]:
    """``run_under`` for a region of code."""
    outer = _SCOPE.table
    if outer is table:
        yield
        return
    _SCOPE.table = table
    try:
        with _OpMode(table, is_within=outer is not None):
            yield
    finally:
        _SCOPE.table = outer


class _OpMode(TorchFunctionMode):
    """Gives the operators of a table their formats.

    Args:
        table: what they are.
        is_within: another table is in force around it, which has no say in what this one knows.
    """

    def __init__(self, table: OpTable, *, is_within: bool) -> None:
        super().__init__()
        self._formats = table.formats
        self._in_place = table.in_place
        self._is_within = is_within

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self._formats or "out" in kwargs:
            return func(*args, **kwargs)
        formats = self._formats[func]
        if not self._is_within:
            return func(*args, **kwargs) if formats is None else self._run(func, formats, args, kwargs)
        with without_modes():
            return func(*args, **kwargs) if formats is None else self._run(func, formats, args, kwargs)

    def _run(self, func: Any, formats: Formats, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # what is written to in place keeps its dtype
        dtype = args[0].dtype if func in self._in_place else formats.compute
        first = args[0] if args else None
        is_on_cpu = type(first) is Tensor and first.is_cpu  # the short way to what device_type_of says
        device_type = "cpu" if is_on_cpu else device_type_of(args, kwargs) or "cpu"
        args = tuple([one if type(one) in _UNCAST else cast_to(one, dtype) for one in args])
        for name, one in kwargs.items():
            if type(one) not in _UNCAST:
                kwargs = {**kwargs, name: cast_to(one, dtype)}
        if not torch.is_autocast_enabled(device_type):
            result = func(*args, **kwargs)
            if dtype in LOW and formats.output is None and func not in self._in_place:
                result = widened(result)  # what runs in fp32 around it takes nothing else
        else:
            result = call_without(device_type, func, args, kwargs)  # autocast, which would cast them again
        if formats.output is not None:
            result = cast_to(result, formats.output)
        return result if formats.grad is None else with_gradient_in(result, formats.grad)


def _functions(operator: str) -> frozenset[Any]:
    # one of the user's own may be registered at any time
    return functions_of(operator) if "::" in operator else _functions_of_torch(operator)


@cache
def _functions_of_torch(operator: str) -> frozenset[Any]:
    return functions_of(operator, spellings()["operators"].get(operator, ()))
