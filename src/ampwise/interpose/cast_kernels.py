"""The dispatcher kernels that carry out a cast policy: cast what is eligible, then run the operator below autocast.

They do what the C++ templates of ``ATen/autocast_mode.h`` do. Only floating-point tensors of the device that are
narrower than fp32 are cast up; float64 and integers pass. The cast is an operator that autograd sees, so a gradient
comes back in its input's dtype.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, assert_never

import torch
from torch import Tensor

from ampwise.compat.dispatch import (
    Kernel,
    below_autocast,
    direct_call,
    find_overload,
    signature,
)
from ampwise.compat.dynamo import hide_from_dynamo
from ampwise.plan.operators import CastPolicy

_NARROW = frozenset(
    {
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
    }
)
_CASTABLE = _NARROW | {torch.float32}
WITH_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
Cast = Callable[[Tensor], Tensor]


def make_kernel(name: str, policy: CastPolicy, *, device_type: str) -> Kernel | None:
    """The kernel that gives the overload ``name`` the ``policy``; None where this torch has no such overload."""
    overload = find_overload(name)
    if overload is None:
        return None
    match policy:
        case CastPolicy.FP32:
            kernel = _fp32(overload, device_type)
        case CastPolicy.FP32_SET_OPT_DTYPE:
            kernel = _fp32_set_opt_dtype(overload, device_type)
        case CastPolicy.FP32_APPEND_DTYPE:
            kernel = _fp32_append_dtype(overload, find_overload(WITH_DTYPE[name]), device_type)
        case CastPolicy.PROMOTE:
            kernel = _promote(overload, device_type)
        case CastPolicy.TO_SELF:
            kernel = _to_self(overload, device_type)
        case CastPolicy.LOWER | CastPolicy.BANNED:
            raise ValueError(f"{name}: {policy} is torch's own policy; ampwise has no kernel for it")
        case _:
            assert_never(policy)
    hide_from_dynamo(kernel)
    return kernel


def _fp32(overload: Any, device_type: str) -> Kernel:
    below, call, lift = below_autocast(device_type), direct_call(overload), _lifter(device_type)
    if signature(overload).has_nested_tensors:

        def nested_kernel(*args: Any, **kwargs: Any) -> Any:
            with below():
                return call(
                    *_map_tensors(lift, args), **dict(zip(kwargs, _map_tensors(lift, kwargs.values()), strict=True))
                )

        return nested_kernel

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with below():
            return call(*[lift(a) if isinstance(a, Tensor) and a.dtype in _NARROW else a for a in args], **kwargs)

    return kernel


def _fp32_set_opt_dtype(overload: Any, device_type: str) -> Kernel:
    below, call, is_on_device = below_autocast(device_type), direct_call(overload), _device_test(device_type)
    num_before_dtype = (signature(overload).dtype_index or 0) - 1

    def kernel(tensor: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        # the dispatcher leaves trailing defaults out, so a dtype that is there was named
        is_named = "dtype" in kwargs or len(args) > num_before_dtype
        if tensor.dtype in _NARROW and not is_named and is_on_device(tensor):
            kwargs["dtype"] = torch.float32
        with below():
            return call(tensor, *args, **kwargs)

    return kernel


def _fp32_append_dtype(overload: Any, with_dtype: Any, device_type: str) -> Kernel:
    below, call, is_on_device = below_autocast(device_type), direct_call(overload), _device_test(device_type)
    call_with_dtype, defaults = direct_call(with_dtype), signature(overload).defaults

    def kernel(tensor: Tensor, /, *args: Any) -> Any:
        with below():
            if tensor.dtype in _NARROW and is_on_device(tensor):
                return call_with_dtype(tensor, *args, *defaults[1 + len(args) :], dtype=torch.float32)
            return call(tensor, *args)

    return kernel


def _promote(overload: Any, device_type: str) -> Kernel:
    below, call, lift = below_autocast(device_type), direct_call(overload), _lifter(device_type)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if len(_CASTABLE.intersection(_dtypes(args))) > 1:
            args = tuple(_map_tensors(lift, args))
        with below():
            return call(*args, **kwargs)

    return kernel


def _to_self(overload: Any, device_type: str) -> Kernel:
    below, call, is_on_device = below_autocast(device_type), direct_call(overload), _device_test(device_type)

    def kernel(written: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        dtype = written.dtype
        if dtype in _CASTABLE:
            args = tuple(
                a.to(dtype)
                if isinstance(a, Tensor) and a.dtype is not dtype and a.dtype in _CASTABLE and is_on_device(a)
                else a
                for a in args
            )
        with below():
            return call(written, *args, **kwargs)

    return kernel


def _device_test(device_type: str) -> Callable[[Tensor], bool]:
    is_of_type = attrgetter(f"is_{device_type}")

    def is_on_device(tensor: Tensor) -> bool:
        # a meta tensor under an autocast key stands for a tensor of that device
        return is_of_type(tensor) or tensor.is_meta

    return is_on_device


def _lifter(device_type: str) -> Cast:
    """Casts a narrow tensor of the device to fp32 and lets any other pass."""
    is_on_device = _device_test(device_type)

    def lift(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in _NARROW and is_on_device(tensor) else tensor

    return lift


def _map_tensors(cast: Cast, values: Iterable[Any]) -> list[Any]:
    """``values`` with ``cast`` applied to each tensor among them and in lists among them."""
    return [
        cast(value)
        if isinstance(value, Tensor)
        else _map_tensors(cast, value)
        if isinstance(value, (list, tuple))
        else value
        for value in values
    ]


def _dtypes(values: Iterable[Any]) -> Iterator[torch.dtype]:
    """The dtype of each tensor among ``values`` and in lists among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value.dtype
        elif isinstance(value, (list, tuple)):
            yield from _dtypes(value)
