"""Which of torch's operators make the host wait for a GPU, and CUDA's own mode that tells of waits."""

from collections.abc import Callable
from typing import Any, Final

import torch

from ampwise.records.syncs import SyncKind

_SCALARS: Final = {
    "aten._local_scalar_dense": "one number read",
    "aten.is_nonzero": "one number read",
    "aten.equal": "torch.equal",
    "aten._linalg_check_errors": "check of a torch.linalg function",
}
_SHAPES: Final = {
    "aten.nonzero": "nonzero",
    "aten.masked_select": "masked_select",
    "aten._unique": "unique",
    "aten._unique2": "unique",
    "aten.unique_dim": "unique",
    "aten.unique_consecutive": "unique_consecutive",
    "aten.bincount": "bincount",
}
_MASKS: Final = frozenset({torch.bool, torch.uint8})
SYNC_WARNING: Final = "called a synchronizing CUDA operation"
"""How the warning of CUDA's sync debug mode begins."""


def sync_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[SyncKind, str] | None:
    """Why an operator on a GPU's tensors makes the host wait, and what a person calls it; None where it does not.

    From ATen's CUDA kernels: what asks for a number, or makes a tensor whose size depends on the numbers.
    """
    if name in _SCALARS:
        return SyncKind.SCALAR, _SCALARS[name]
    if name in _SHAPES:
        return SyncKind.SHAPE, _SHAPES[name]
    if name == "aten.repeat_interleave" and kwargs.get("output_size") is None:
        return SyncKind.SHAPE, "repeat_interleave without output_size"
    if name == "aten.index" and _has_mask(args):
        return SyncKind.SHAPE, "index with a boolean mask"
    if name in {"aten.index_put_", "aten.index_put"} and _has_mask(args) and not _is_fill(args):
        return SyncKind.SHAPE, "write under a boolean mask"
    return None


def is_copy_to_host(name: str, args: tuple[Any, ...], result: Any) -> bool:
    """Whether the operator copied a device's tensor into ordinary memory of the host, and so waited for it."""
    if name not in {"aten._to_copy", "aten.copy_"} or not isinstance(result, torch.Tensor):
        return False
    source = args[1] if name == "aten.copy_" else args[0]
    return isinstance(source, torch.Tensor) and source.device.type != "cpu" and result.device.type == "cpu"


def watch_cuda_syncs() -> Callable[[], None] | None:
    """Let CUDA warn of every wait until the returned undo is called; None where CUDA is not in use."""
    if not torch.cuda.is_initialized():
        return None
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    return lambda: torch.cuda.set_sync_debug_mode(before)


def _has_mask(args: tuple[Any, ...]) -> bool:
    indices = args[1] if len(args) > 1 else ()
    return any(isinstance(index, torch.Tensor) and index.dtype in _MASKS for index in indices)


def _is_fill(args: tuple[Any, ...]) -> bool:
    """``x[mask] = 0``: torch turns it into a masked fill, which needs no size."""
    return len(args) > 2 and isinstance(args[2], torch.Tensor) and args[2].numel() == 1 and args[2].dim() == 0
