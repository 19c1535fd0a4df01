"""What a tensor of the imaginary GPU says of itself in Python, and how tensors get there."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.imaginary import (
    GPU,
    Place,
    default_device,
    is_computing,
    is_imaginary,
    meant_as_meta,
    place_of,
    real_attribute,
)
from ampwise.interpose.seam import Undo
from ampwise.interpose.stand_in import StandIn, put

_TENSOR: Final = "torch:Tensor"
_ADDRESS_BITS: Final = 40
"""No storage is as large as 2 to this."""
_DEVICES: Final = {Place.GPU: GPU, Place.HOST: torch.device("cpu")}


def stand_in_for_tensors() -> Undo:
    """Let tensors of the imaginary GPU look like a GPU's in Python, until the returned undo is called."""
    return put([*_properties(), *_methods(), *_makers(), *_contexts(), *_of_lazy()])


def is_gpu(device: object) -> bool:
    """Whether a device argument means the GPU: ``"cuda"``, ``"cuda:0"``, 0 or the device itself."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def _properties() -> Iterator[StandIn]:
    # kernels written in Python make tensors on their argument's device, which must be the one that has no data
    def device(tensor: Tensor) -> torch.device:
        place = Place.REAL if is_computing() else place_of(tensor)
        return _DEVICES.get(place) or real_attribute(tensor, "device")

    def is_cuda(tensor: Tensor) -> bool:
        return is_imaginary(tensor) or real_attribute(tensor, "is_cuda")

    def is_cpu(tensor: Tensor) -> bool:
        return place_of(tensor) is Place.HOST or real_attribute(tensor, "is_cpu")

    def is_meta(tensor: Tensor) -> bool:
        return real_attribute(tensor, "is_meta") and (is_computing() or place_of(tensor) is Place.REAL)

    for name, getter in {"device": device, "is_cuda": is_cuda, "is_cpu": is_cpu, "is_meta": is_meta}.items():
        yield StandIn(owner=_TENSOR, attribute=name, make=lambda _, getter=getter: property(getter))


def _methods() -> Iterator[StandIn]:
    yield StandIn(owner=_TENSOR, attribute="to", make=_to)
    yield StandIn(owner=_TENSOR, attribute="cuda", make=lambda _: _cuda)
    yield StandIn(owner=_TENSOR, attribute="pin_memory", make=lambda _: _itself)
    yield StandIn(owner=_TENSOR, attribute="is_pinned", make=lambda _: _is_pinned)
    yield StandIn(owner=_TENSOR, attribute="record_stream", make=lambda _: _record_stream)
    yield StandIn(owner=_TENSOR, attribute="get_device", make=lambda _: _get_device)
    yield StandIn(owner=_TENSOR, attribute="data_ptr", make=_data_ptr)
    yield StandIn(owner="torch:UntypedStorage", attribute="data_ptr", make=_storage_pointer)
    yield StandIn(owner=_TENSOR, attribute="type", make=_type)
    yield StandIn(owner=_TENSOR, attribute="__repr__", make=_repr)
    yield StandIn(owner=_TENSOR, attribute="numpy", make=_from_zeros)
    yield StandIn(owner=_TENSOR, attribute="__array__", make=_from_zeros)
    yield StandIn(owner=_TENSOR, attribute="tolist", make=_from_zeros)


def _of_lazy() -> Iterator[StandIn]:
    """Parameters without a shape yet let only those methods through that they list: the originals."""

    def make(allowed: list[Any]) -> list[Any]:
        return [*allowed, Tensor.to, Tensor.cuda, Tensor.get_device]

    yield StandIn(owner="torch.nn.parameter:UninitializedTensorMixin", attribute="_allowed_methods", make=make)


def _itself(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return tensor


def _is_pinned(_tensor: Tensor, *_: Any, **__: Any) -> bool:
    return False


def _record_stream(_tensor: Tensor, _stream: Any) -> None:
    pass


def _get_device(tensor: Tensor) -> int:
    return GPU.index if is_imaginary(tensor) else -1


def _data_ptr(original: Callable[..., int]) -> Callable[..., int]:
    def data_ptr(tensor: Tensor) -> int:
        if is_computing() or place_of(tensor) is Place.REAL:
            return original(tensor)
        storage = tensor.untyped_storage()
        offset = int(tensor.storage_offset()) * tensor.element_size()
        return _address(storage) + offset if storage.nbytes() else 0

    return data_ptr


def _storage_pointer(original: Callable[..., int]) -> Callable[..., int]:
    def data_ptr(storage: torch.UntypedStorage) -> int:
        return original(storage) or (_address(storage) if storage.nbytes() and not is_computing() else 0)

    return data_ptr


def _address(storage: torch.UntypedStorage) -> int:
    """A place of its own for each storage, so that those who ask which tensors share memory are told."""
    return id(storage) << _ADDRESS_BITS


def _cuda(tensor: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:  # noqa: FBT001, FBT002 # torch's own signature
    _ = device, non_blocking
    keywords = {} if memory_format is None else {"memory_format": memory_format}
    return tensor.to(GPU, **keywords)


def _to(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``Tensor.to`` that knows the GPU by its full name: what is there already is only cast."""

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if is_computing():
            return original(tensor, *args, **kwargs)
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        elif isinstance(kwargs.get("other"), Tensor):
            other = kwargs.pop("other")
            args = (other.device, other.dtype, *args)
        target = kwargs.get("device", args[0] if args else None)
        place = place_of(tensor)
        is_there = is_gpu(target) if place is Place.GPU else place is Place.HOST and _is(target, "cpu")
        if is_there:
            rest = args[1:] if args and args[0] is target else args
            return _cast(original, tensor, rest, {name: value for name, value in kwargs.items() if name != "device"})
        if _is(target, "meta"):
            with meant_as_meta():
                return original(tensor, *args, **kwargs)
        if not is_gpu(target):
            return original(tensor, *args, **kwargs)
        if "device" in kwargs:
            return original(tensor, *args, **{**kwargs, "device": GPU})
        return original(tensor, GPU, *args[1:], **kwargs)

    return to


def _is(device: object, kind: str) -> bool:
    return device == kind or (isinstance(device, torch.device) and device.type == kind)


def _cast(original: Callable[..., Tensor], tensor: Tensor, rest: tuple[Any, ...], others: dict[str, Any]) -> Tensor:
    """``to`` of a tensor that is on the GPU already, without the device."""
    dtype = next((one for one in rest if isinstance(one, torch.dtype)), others.pop("dtype", None))
    flags = [one for one in rest if isinstance(one, bool)]
    copy = others.get("copy", len(flags) > 1 and flags[1])
    if dtype is None and not copy and others.get("memory_format") is None:
        return tensor
    memory_format = others.get("memory_format")
    keywords = {} if memory_format is None else {"memory_format": memory_format}
    return original(tensor, dtype or tensor.dtype, copy=copy, **keywords)


_NO_NUMPY: Final = (
    f"can't convert {GPU} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
)
"""What CUDA says."""


def _from_zeros(original: Callable[..., Any]) -> Callable[..., Any]:
    """What C++ reads from memory: of a tensor of the host without data, zeros are read."""

    def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if place_of(tensor) is Place.GPU:
            if original.__name__ != "tolist":
                raise TypeError(_NO_NUMPY)
            tensor = tensor.cpu()
        if place_of(tensor) is Place.HOST:
            tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
        return original(tensor, *args, **kwargs)

    return read


def _type(original: Callable[..., Any]) -> Callable[..., Any]:
    def type_(tensor: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not is_imaginary(tensor):
            return original(tensor, dtype, *args, **kwargs)
        if dtype is None:
            return original(torch.empty(0, dtype=tensor.dtype)).replace("torch.", "torch.cuda.")
        if isinstance(dtype, torch.dtype):
            return tensor.to(dtype)
        return tensor.to(original(torch.empty(0), str(dtype).replace("torch.cuda.", "torch.")).dtype)

    return type_


def _repr(original: Callable[..., str]) -> Callable[..., str]:
    def repr_(tensor: Tensor, **kwargs: Any) -> str:
        place = place_of(tensor)
        if place is Place.REAL:
            return original(tensor, **kwargs)
        return f"tensor(..., device='{_DEVICES[place]}', size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    return repr_


def _contexts() -> Iterator[StandIn]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(context: Any, *args: Any, **kwargs: Any) -> Any:
            if context.device.type != "meta":
                return original(context, *args, **kwargs)
            with meant_as_meta():
                return original(context, *args, **kwargs)

        return function

    yield StandIn(owner="torch.utils._device:DeviceContext", attribute="__torch_function__", make=make)


def _makers() -> Iterator[StandIn]:
    """Functions that fill a tensor in C++ on the host and move it there, past Python."""
    for name in ("tensor", "as_tensor", "asarray", "from_numpy"):
        yield StandIn(owner="torch", attribute=name, make=_made_on_host)


def _made_on_host(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(*args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.get("device")
        is_free = device is None and not (args and isinstance(args[0], Tensor))
        if is_computing() or not is_gpu(default_device() if is_free else device):
            return original(*args, **kwargs)
        needs_grad = kwargs.pop("requires_grad", False)
        data = args[0] if args else kwargs.get("data")
        if isinstance(data, Tensor) and is_imaginary(data):
            return data.to(kwargs.get("dtype") or data.dtype).requires_grad_(needs_grad)
        made = original(*args, **{**kwargs, "device": "cpu"}).to(GPU)
        return made.requires_grad_(needs_grad) if needs_grad else made

    return make
