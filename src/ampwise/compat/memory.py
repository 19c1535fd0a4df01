"""The storages under tensors: what counting memory needs of torch."""

import sys
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


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
