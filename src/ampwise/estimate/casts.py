"""Autocast on the imaginary GPU: CUDA's lists, carried out by kernels of our own.

torch's kernels ask C++ whether a tensor is CUDA's, and imaginary ones are not. Two things of theirs decide bytes and
are done alike: a parameter is cast once as long as autocast lasts, and an operator's arguments are cast from the last
to the first, which is the order gcc evaluates them in.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, assert_never

import torch
from torch import Tensor

from ampwise.compat.dispatch import Kernel, below_autocast, direct_call, find_overload, register_kernels, signature
from ampwise.compat.imaginary import is_imaginary, is_view
from ampwise.interpose.cast_kernels import WITH_DTYPE
from ampwise.interpose.seam import Undo, undo_all
from ampwise.interpose.stand_in import StandIn, put
from ampwise.plan.operators import CastPolicy

_DEVICE_TYPE = "cuda"
Casting = Callable[[], AbstractContextManager[None]]


class ImaginaryAutocast:
    """Registers CUDA's cast lists for imaginary tensors.

    Args:
        policies: By overload, as ``softmax.int``.
        casting: What is made within it counts as a cast.
    """

    def __init__(self, policies: dict[str, CastPolicy], *, casting: Casting) -> None:
        self._policies = {**policies, "_cudnn_rnn": CastPolicy.LOWER}  # its kernel is in the CUDA library alone
        self._casting = casting
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}

    def start(self) -> Undo:
        """Put the kernels under CUDA's autocast key until the returned undo is called."""
        made = {name: self._kernel(name, policy) for name, policy in self._policies.items()}
        kernels = {name: kernel for name, kernel in made.items() if kernel is not None}
        clear = StandIn(owner="torch", attribute="clear_autocast_cache", make=lambda _: self._cache.clear)
        undos = [register_kernels(_DEVICE_TYPE, kernels), put([clear])]
        return lambda: undo_all(undos)

    def _cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if not _is_eligible(tensor) or tensor.dtype is dtype:
            return tensor
        with self._casting():
            if not self._is_cached(tensor, dtype):
                return tensor.to(dtype)
            known = self._cache.get(id(tensor))
            if known is None:
                known = self._cache[id(tensor)] = (tensor, tensor.to(dtype))
            return known[1]

    def _is_cached(self, tensor: Tensor, dtype: torch.dtype) -> bool:
        """Whether torch's ``cached_cast`` would keep the copy: of leaves that are trained."""
        return (
            torch.is_autocast_cache_enabled()
            and dtype is torch.get_autocast_dtype(_DEVICE_TYPE)
            and tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not is_view(tensor)
        )

    def _all(self, values: Iterable[Any], dtype: torch.dtype) -> list[Any]:
        """Every tensor among ``values`` cast, the last first."""
        made = [self._one(value, dtype) for value in reversed(list(values))]
        made.reverse()
        return made

    def _one(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Tensor):
            return self._cast(value, dtype)
        if isinstance(value, (list, tuple)):
            return self._all(value, dtype)
        return value

    def _kernel(self, name: str, policy: CastPolicy) -> Kernel | None:  # noqa: PLR0911 # one return a policy
        overload = find_overload(name)
        if overload is None:
            return None
        match policy:
            case CastPolicy.LOWER:
                return self._casts(overload, lambda _: torch.get_autocast_dtype(_DEVICE_TYPE))
            case CastPolicy.FP32:
                return self._casts(overload, lambda _: torch.float32)
            case CastPolicy.PROMOTE:
                return self._casts(overload, _widest)
            case CastPolicy.FP32_SET_OPT_DTYPE:
                return _sets_dtype(overload)
            case CastPolicy.FP32_APPEND_DTYPE:
                return _appends_dtype(overload, find_overload(WITH_DTYPE[name]))
            case CastPolicy.BANNED:
                return _refuses(name)
            case CastPolicy.TO_SELF:
                return None
            case _:
                assert_never(policy)

    def _casts(self, overload: Any, choose: Callable[[list[Any]], torch.dtype]) -> Kernel:
        below, call = below_autocast(_DEVICE_TYPE), direct_call(overload)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with below():
                dtype = choose([*args, *kwargs.values()])
                keywords = dict(zip(kwargs, self._all(kwargs.values(), dtype), strict=True))
                return call(*self._all(args, dtype), **keywords)

        return kernel


def _is_eligible(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64 and is_imaginary(tensor)


def _widest(values: list[Any]) -> torch.dtype:
    """fp32 if any argument is in it, else autocast's format."""
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    has_fp32 = any(isinstance(one, Tensor) and _is_eligible(one) and one.dtype is torch.float32 for one in flat)
    return torch.float32 if has_fp32 else torch.get_autocast_dtype(_DEVICE_TYPE)


def _sets_dtype(overload: Any) -> Kernel:
    below, call = below_autocast(_DEVICE_TYPE), direct_call(overload)
    num_before = (signature(overload).dtype_index or 0) - 1

    def kernel(tensor: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        is_named = "dtype" in kwargs or len(args) > num_before
        if _is_eligible(tensor) and tensor.dtype is not torch.float32 and not is_named:
            kwargs["dtype"] = torch.float32
        with below():
            return call(tensor, *args, **kwargs)

    return kernel


def _appends_dtype(overload: Any, with_dtype: Any) -> Kernel:
    below, call, call_with_dtype = below_autocast(_DEVICE_TYPE), direct_call(overload), direct_call(with_dtype)
    defaults = signature(overload).defaults

    def kernel(tensor: Tensor, /, *args: Any) -> Any:
        with below():
            if _is_eligible(tensor):
                return call_with_dtype(tensor, *args, *defaults[1 + len(args) :], dtype=torch.float32)
            return call(tensor, *args)

    return kernel


def _refuses(name: str) -> Kernel:
    def kernel(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"torch.nn.functional.{name} and torch.nn.BCELoss are unsafe to autocast")

    return kernel
