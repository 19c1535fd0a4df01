"""Tensors of a GPU that is not there: torch's own class, no data, CUDA's dispatch keys.

To C++ such a tensor lies on the meta device, for which every build has what autograd needs; to the dispatcher it is
CUDA's, so that autograd, autocast and every override registered for CUDA meet it as on a GPU.

Private names: ``Tensor._make_subclass(device_for_backend_keys=)``, ``torch._C._dispatch_keys``,
``_PreserveDispatchKeyGuard``, ``_set_meta_in_tls_dispatch_include``, ``DispatchKey``, ``TensorBase``.
FakeTensor uses the same; where one is missing the estimate's canary says so.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import DispatchKey

GPU = torch.device("cuda", 0)
"""The device that is not there."""
META = torch.device("meta")
_FRAMES_OF_A_MODE: Final = 8
"""Frames between a mode's handler and what called the operator, at most."""


def imagine(meta: Tensor) -> Tensor:
    """The tensor of the imaginary GPU that shares ``meta``'s storage, shape and strides."""
    return torch.Tensor._make_subclass(torch.Tensor, meta, False, device_for_backend_keys=GPU)  # pyright: ignore[reportCallIssue] # undeclared argument


def is_imaginary(tensor: Tensor) -> bool:
    """Whether ``tensor`` lies on the imaginary GPU. No real CUDA tensor may exist in the process."""
    return torch._C._dispatch_keys(tensor).has(DispatchKey.CUDA)


def is_plain_meta(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a meta tensor that nobody took for the GPU's yet."""
    keys = torch._C._dispatch_keys(tensor)
    return keys.has(DispatchKey.Meta) and not keys.has(DispatchKey.CUDA)


class _Thread(threading.local):
    """How deep this thread is within kernels."""

    depth = 0


_THREAD = _Thread()


def is_computing() -> bool:
    """Whether this thread is within a kernel of the meta device."""
    return _THREAD.depth > 0


@contextmanager
def computed_as_meta() -> Generator[None]:
    """Run operators on imaginary tensors by the meta device's kernels, which compute shapes and allocate nothing."""
    _THREAD.depth += 1
    try:
        with torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(True)
            yield
    finally:
        _THREAD.depth -= 1


def real_attribute(tensor: Tensor, name: str) -> Any:
    """What C++ says of ``tensor``: its meta device, say."""
    return getattr(torch._C.TensorBase, name).__get__(tensor)


def num_storage_owners(tensor: Tensor) -> int:
    """How many own the tensor's storage; the storage object that asks is one of them."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def is_called_by_engine(frame: FrameType) -> bool:
    """Whether autograd's engine, rather than Python code, called the operator that a dispatch mode runs in ``frame``."""
    above: FrameType | None = frame
    for _ in range(_FRAMES_OF_A_MODE):
        if above is None:
            return False
        if above.f_code.co_name == "_engine_run_backward":
            return True
        above = above.f_back
    return False
