"""A dispatch mode that stands around every operator, what operators are, and which node of autograd's runs them.

Private names: ``_should_skip_dynamo``, ``_get_current_dispatch_mode``, ``_get_current_dispatch_mode_stack``,
``OpOverload._schema``, ``_current_autograd_node``, ``_get_sequence_nr`` and ``Node._sequence_nr``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
)

from ampwise.compat.dynamo import hide_from_dynamo

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called with an operator and its arguments in the operator's place; gives its result."""


class AroundOperators(TorchDispatchMode):
    """Lets ``around`` stand in every operator's place while the mode is entered.

    Operators of tensor subclasses are left to the subclass first, so that those it runs inside are seen. Code that
    torch.compile made stays compiled, and its operators are not seen.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would wrap every call in functions that switch tracing off; below that is said once, of the code."""
        return False

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around = around
        self._is_over = False

    def leave(self) -> None:
        """Leave the mode: now, or where others of ours were entered within it, as soon as they are left."""
        self._is_over = True
        if is_innermost(self):
            self.__exit__(None, None, None)

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        below = _get_current_dispatch_mode()
        if isinstance(below, AroundOperators) and below._is_over:
            below.__exit__(None, None, None)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code is not thrown back to eager while the mode is on."""
        return True

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and any(map(_has_own_dispatch, types)):
            return NotImplemented
        return self._around(func, args, kwargs or {})


hide_from_dynamo(AroundOperators.__torch_dispatch__)


def _has_own_dispatch(kind: type[Any]) -> bool:
    """Whether tensors of this class run operators in their own way."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue] # torch types it as a method


def is_foreign_mode_on() -> bool:
    """Whether a dispatch mode that is not ours is entered in this thread."""
    return any(not isinstance(mode, AroundOperators) for mode in _get_current_dispatch_mode_stack())


def is_any_mode_on() -> bool:
    """Whether some dispatch mode is entered in this thread."""
    return _get_current_dispatch_mode() is not None


def is_innermost(mode: TorchDispatchMode) -> bool:
    """Whether ``mode`` is the one this thread entered last, so that leaving it disturbs no other."""
    return _get_current_dispatch_mode() is mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What one overload of an operator is."""

    name: str
    """``aten.mm``: its overload left out."""
    overload: str
    """``Tensor``, ``default``."""
    is_view: bool
    """Its result shares the memory of an argument and nothing is computed."""
    written: tuple[int, ...]
    """Positions of the arguments it writes to."""


@cache
def operator_of(func: Any) -> Operator:
    """What ``func`` is, as a dispatch mode is given it."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return Operator(name=str(func), overload="", is_view=False, written=())
    arguments = [argument.alias_info for argument in schema.arguments]
    written = tuple(i for i, alias in enumerate(arguments) if alias is not None and alias.is_write)
    returns_alias = any(one.alias_info is not None for one in schema.returns)
    is_view = (returns_alias and not written) or schema.name in {"aten::detach", "aten::_unsafe_view", "aten::lift"}
    name = schema.name.replace("::", ".")
    return Operator(name=name, overload=schema.overload_name or "default", is_view=is_view, written=written)


def is_collective(func: Any) -> bool:
    """Whether ``func`` sends tensors to other processes and receives theirs."""
    return operator_of(func).name.startswith(("c10d.", "_c10d_functional."))


def last_sequence_number() -> int:
    """The number of this thread's autograd node made last; nodes made before have smaller ones."""
    return torch.autograd._get_sequence_nr() - 1  # pyright: ignore[reportPrivateImportUsage]


def running_sequence_number() -> int | None:
    """The number of the forward operator whose gradient this thread computes; None outside of a backward pass."""
    node: Any = torch._C._current_autograd_node()  # torch's stubs leave None out
    return None if node is None else node._sequence_nr()
