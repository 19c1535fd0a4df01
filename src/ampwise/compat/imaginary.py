"""Tensors of a GPU that is not there, or too large for the host: torch's own class, no data, that device's keys.

To C++ such a tensor lies on the meta device, for which every build has what autograd needs; to the dispatcher it is
CUDA's, so that autograd, autocast and every override registered for CUDA meet it as on a GPU.

Private names: ``Tensor._make_subclass(device_for_backend_keys=)``, ``torch._C._dispatch_keys``,
``_PreserveDispatchKeyGuard``, ``_set_meta_in_tls_dispatch_include``, ``DispatchKey``, ``TensorBase``,
``Tensor._is_view``, ``DTensor._local_tensor``, ``_get_current_function_mode_stack``,
``torch.utils._device.DeviceContext``, ``torch.utils._python_dispatch._disable_current_modes``.
FakeTensor uses the same; where one is missing the estimate's canary says so.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum, auto
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

GPU = torch.device("cuda", 0)
"""The device that is not there."""
META = torch.device("meta")
_REAL_DEVICE: Final = torch._C.TensorBase.device.__get__
_PLAIN: Final = frozenset({Tensor, torch.nn.Parameter})
_FRAMES_OF_A_MODE: Final = 8
"""Frames between a mode's handler and what called the operator, at most."""


class Place(Enum):
    """Where a tensor lies."""

    GPU = auto()
    """On the GPU that is not there."""
    HOST = auto()
    """On the host, without data: too large to be held for an estimate's sake."""
    REAL = auto()
    """Where it says, with its data."""


def imagine(meta: Tensor, *, on: torch.device = GPU) -> Tensor:
    """The imaginary tensor, of the GPU or of the host, that shares ``meta``'s storage, shape and strides."""
    return torch.Tensor._make_subclass(torch.Tensor, meta, False, device_for_backend_keys=on)


def local_of(tensor: Tensor) -> Tensor:
    """What this process holds of ``tensor``: its shard, where it is spread over several (``DTensor``)."""
    return tensor if type(tensor) in _PLAIN else getattr(tensor, "_local_tensor", tensor)


def is_imaginary(tensor: Tensor) -> bool:
    """Whether ``tensor`` lies on the imaginary GPU. No real CUDA tensor may exist in the process."""
    return torch._C._dispatch_keys(local_of(tensor)).has(DispatchKey.CUDA)


def place_of(tensor: Tensor) -> Place:
    """Where ``tensor`` lies."""
    tensor = local_of(tensor)
    keys = torch._C._dispatch_keys(tensor)
    if keys.has(DispatchKey.CUDA):
        return Place.GPU
    is_dataless = keys.has(DispatchKey.CPU) and _REAL_DEVICE(tensor) == META
    return Place.HOST if is_dataless else Place.REAL


def is_plain_meta(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a meta tensor that nobody took for an imaginary device's yet."""
    keys = torch._C._dispatch_keys(tensor)
    return keys.has(DispatchKey.Meta) and not keys.has(DispatchKey.CUDA)


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows ``tensor`` as a view of another."""
    return tensor._is_view()


class _Thread(threading.local):
    """How deep this thread is within kernels."""

    depth = 0
    meta_contexts = 0
    """How many ``with torch.device("meta")`` this thread is making tensors for."""


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


@contextmanager
def left_to_torch() -> Generator[None]:
    """Let torch work on fake tensors of its own, which only it knows from imaginary ones."""
    _THREAD.depth += 1
    try:
        with _disable_current_modes():
            yield
    finally:
        _THREAD.depth -= 1


@contextmanager
def meant_as_meta() -> Generator[None]:
    """What is made within is asked for on the meta device itself."""
    _THREAD.meta_contexts += 1
    try:
        yield
    finally:
        _THREAD.meta_contexts -= 1


def is_meant_as_meta() -> bool:
    """Whether a tensor that is now made on the meta device is to stay there.

    A formula in C++ that makes tensors beside an imaginary one asks for the meta device too, and means the GPU.
    """
    return _THREAD.meta_contexts > 0


def default_device() -> torch.device | None:
    """Where this thread makes tensors of which nobody says where; None is the host."""
    modes = reversed(_get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


def real_attribute(tensor: Tensor, name: str) -> Any:
    """What C++ says of ``tensor``: its meta device, say."""
    return getattr(torch._C.TensorBase, name).__get__(local_of(tensor))


def num_storage_owners(tensor: Tensor) -> int:
    """How many own the tensor's storage; the storage object that asks is one of them."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def is_called_by_engine(frame: FrameType) -> bool:
    """Whether autograd's engine, not Python code, called the operator that a dispatch mode runs in ``frame``."""
    above: FrameType | None = frame
    for _ in range(_FRAMES_OF_A_MODE):
        if above is None:
            return False
        if above.f_code.co_name == "_engine_run_backward":
            return True
        above = above.f_back
    return False
