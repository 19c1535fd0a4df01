"""torch's dispatcher: autocast keys, what is registered under them, and kernels of our own.

Private names: ``torch._C.DispatchKey``, ``DispatchKeySet``, ``_ExcludeDispatchKeyGuard`` and
``_dispatch_get_registrations_for_dispatch_key``; ``_dispatch_has_computed_kernel_for_dispatch_key``;
``_are_functorch_transforms_active``; ``_len_torch_dispatch_stack``; ``OpOverload._op`` and
``_schema``; ``Library._destroy``.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet

Kernel = Callable[..., Any]
_NAMESPACE = "aten"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a kernel has to know of its operator's arguments."""

    has_nested_tensors: bool
    """Whether tensors stand in lists or are passed by keyword."""
    dtype_index: int | None
    """Position of ``dtype``, if the operator takes one."""
    defaults: tuple[Any, ...]
    """The default of each positional argument, or None: the dispatcher leaves trailing ones out of a call."""


def autocast_key(device_type: str) -> str:
    """The name of the dispatch key under which ``device_type``'s autocast is registered: ``AutocastCPU``."""
    return f"Autocast{device_type.upper()}"


def has_autocast_key(device_type: str) -> bool:
    """Whether torch has an autocast for ``device_type``."""
    return hasattr(DispatchKey, autocast_key(device_type)) and torch.amp.is_autocast_available(device_type)


def below_autocast(device_type: str) -> Callable[[], Any]:
    """A context manager's maker: within it this thread's operators pass ``device_type``'s autocast by."""
    return partial(torch._C._ExcludeDispatchKeyGuard, DispatchKeySet(getattr(DispatchKey, autocast_key(device_type))))


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` (``grad``, ``vmap``) is at work: none can reach into a Python kernel."""
    return torch._C._are_functorch_transforms_active()


def registered(device_type: str) -> frozenset[str]:
    """The aten overloads that ``device_type``'s autocast has a kernel for, as ``softmax.int``."""
    prefix = f"{_NAMESPACE}::"
    names = torch._C._dispatch_get_registrations_for_dispatch_key(autocast_key(device_type))
    return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def find_overload(name: str) -> Any | None:
    """The operator ``softmax.int``; None where this torch has none of that name."""
    packet_name, _, overload_name = name.partition(".")
    packet = getattr(torch.ops.aten, packet_name, None)
    return getattr(packet, overload_name or "default", None)


def direct_call(overload: Any) -> Kernel:
    """The operator without the Python layer around it."""
    return overload._op


def signature(overload: Any) -> Signature:
    """How ``overload`` takes its arguments, read from its schema."""
    arguments = overload._schema.arguments
    tensors = [argument for argument in arguments if "Tensor" in str(argument.type)]
    return Signature(
        has_nested_tensors=any(a.kwarg_only or str(a.type).startswith("List") for a in tensors),
        dtype_index=next((i for i, a in enumerate(arguments) if a.name == "dtype"), None),
        defaults=tuple(a.default_value for a in arguments if not a.kwarg_only),
    )


def register_kernels(device_type: str, kernels: Mapping[str, Kernel]) -> Callable[[], None]:
    """Put ``kernels`` (by overload name) under ``device_type``'s autocast key until the returned undo is called."""
    return _implement(kernels, autocast_key(device_type), with_keys=False)


def replace_kernels(key: str, names: Iterable[str], make: Callable[[Kernel], Kernel]) -> Callable[[], None]:
    """Put ``make(original)`` in the place of each overload's kernel under the dispatch key until the undo is called.

    Both kernels take the dispatch keys of the call first. An overload without a kernel there is passed over.
    """
    originals = own_kernels(key, names)
    return put_kernels(key, {name: make(original) for name, original in originals.items()})


def own_kernels(key: str, names: Iterable[str], *, composite: bool = False) -> dict[str, Kernel]:
    """The kernels of the overloads under the dispatch key; they take the dispatch keys of the call first.

    An overload without a kernel there is left out. ``composite`` takes the one for all backends where the key has
    none of its own.
    """
    theirs = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    qualified = {name: f"{_NAMESPACE}::{name}" for name in names if find_overload(name) is not None}
    return {
        name: torch.library.get_kernel(full, key).call_boxed
        for name, full in qualified.items()
        if full in theirs or (composite and torch._C._dispatch_has_computed_kernel_for_dispatch_key(full, key))
    }


def put_kernels(key: str, kernels: Mapping[str, Kernel]) -> Callable[[], None]:
    """Put ``kernels``, which take the dispatch keys of the call first, under the key until the undo is called."""
    return _implement(kernels, key, with_keys=True)


def put_composites(kernels: Mapping[str, Kernel], *, device_type: str) -> Callable[[], None]:
    """Put ``kernels`` in the place of composite operators for the device's tensors, with autograd and without it.

    They are made of other operators, so autograd needs to know nothing of them.
    """
    device = device_type.upper()
    undos = [_implement(kernels, key, with_keys=False) for key in (device, f"Autograd{device}")]

    def undo() -> None:
        for one in undos:
            one()

    return undo


def _implement(kernels: Mapping[str, Kernel], key: str, *, with_keys: bool) -> Callable[[], None]:
    library = torch.library.Library(_NAMESPACE, "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
            for name, kernel in kernels.items():
                library.impl(name, kernel, key, with_keyset=with_keys)
                # a library that is collected takes its kernels with it: let them keep it, whatever becomes of the undo
                vars(kernel)["library"] = library
    except BaseException:
        library._destroy()
        raise
    return library._destroy


def is_watched() -> bool:
    """Whether a dispatch mode sees this thread's operators, and would not see another thread's."""
    return torch._C._len_torch_dispatch_stack() > 0
