"""The storages under tensors, and a dispatch mode that sees every operator: what counting memory needs of torch."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    is_traceable_wrapper_subclass,
)

Watcher = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
"""Called with an operator's arguments, keyword arguments and result, after it has run."""


class OperatorWatch(TorchDispatchMode):
    """Shows ``watcher`` every operator that runs while the mode is entered, and changes none.

    Operators of tensor subclasses are left to the subclass first, so that those it runs inside are seen. Code that
    torch.compile made stays compiled; what it allocates is not seen.
    """

    supports_higher_order_operators = True

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code is not thrown back to eager while the mode is on."""
        return True

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(has_own_dispatch(kind) for kind in types):
            return NotImplemented
        keywords = kwargs or {}
        result = func(*args, **keywords)
        self._watcher(args, keywords, result)
        return result


def has_own_dispatch(kind: type[Any]) -> bool:
    """Whether tensors of this class run operators in their own way."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue] # torch types it as a method


def is_any_mode_on() -> bool:
    """Whether some dispatch mode is entered in this thread."""
    return _get_current_dispatch_mode() is not None


def is_innermost(mode: TorchDispatchMode) -> bool:
    """Whether ``mode`` is the one this thread entered last, so that leaving it disturbs no other."""
    return _get_current_dispatch_mode() is mode


def storages_of(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """Which storages hold ``tensor``'s numbers: several for sparse tensors and wrappers, none where it has none."""
    with torch._C.DisableTorchFunction():
        try:
            if is_traceable_wrapper_subclass(tensor):
                for name in tensor.__tensor_flatten__()[0]:
                    inner = getattr(tensor, name)
                    if isinstance(inner, torch.Tensor):
                        yield from storages_of(inner)
            elif tensor.layout is torch.strided:
                yield tensor.untyped_storage()
            else:
                for part in _sparse_parts(tensor):
                    yield part.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # mkldnn, functional and functorch's tensors have no storage that can be named
            return


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient that a leaf has gathered, past what its class may do when asked."""
    with torch._C.DisableTorchFunction():
        return tensor.grad if tensor.is_leaf else None


def _sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def has_compiled_code() -> bool:
    """Whether torch.compile has made code in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return False
    # frames are not counted where fullgraph=True was asked for
    return dynamo.counters["frames"]["ok"] > 0 or dynamo.counters["stats"]["unique_graphs"] > 0
