"""Gives a device CUDA's cast lists and ampwise's remedies, by kernels under its autocast key.

The kernels are the process's: every thread and module that runs under that device's autocast meets them, and where
autocast is off nothing does. They are reached from Python, from TorchScript and from C++ alike.
"""

import hashlib
import threading
from collections import Counter

import torch

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.compat.dispatch import Kernel, has_autocast_key, register_kernels, registered
from ampwise.interpose.cast_kernels import make_kernel
from ampwise.interpose.compile_caches import cache_tags, tag_caches
from ampwise.interpose.seam import Undo, once
from ampwise.plan.operators import CastLists, CastPolicy, cast_lists

_TAG = "ampwise-lists"
_LOCK = threading.RLock()
_SHARERS: Counter[str] = Counter()
"""How many share the lists of a device type: they are the process's, as what they describe is."""
_SHARED: dict[str, Undo] = {}


def use_cuda_lists(device_type: str = "cpu", *, extra: bool = True) -> Undo:
    """Let autocast on ``device_type`` follow CUDA's fp32 and promote lists until the returned undo is called.

    ``extra`` adds the remedies of ``plan/remedies.toml`` (mean, sigmoid, binary cross-entropy, operators that
    raise on mixed dtypes). On CUDA, whose lists these are, only the remedies are added. The undo may be called more
    than once. Functions compiled before are compiled anew, and torch's compile caches get a key of their own, for
    neither knows of cast lists.

    Raises:
        UsageError: torch has no autocast for ``device_type``.
        CannotRunError: the lists are in use for ``device_type`` already.
    """
    if not has_autocast_key(device_type):
        raise UsageError(
            f'"{device_type}" has no autocast in torch {torch.__version__}; name a device such as cpu or cuda'
        )
    lists = cast_lists(torch.__version__)
    policies = _policies(lists, device_type, extra=extra)
    tag = f"{_TAG}-{device_type}-{_digest(policies)}"
    _check_not_in_use(device_type)
    unregister = register_kernels(device_type, _kernels(policies, device_type))
    untag = tag_caches(tag)

    def undo() -> None:
        unregister()
        untag()

    return once(undo)


def share_cuda_lists(device_type: str) -> Undo:
    """As ``use_cuda_lists``, for any number of users at once: the lists go when the last undo is called.

    Where they are in use already by somebody who does not share them, they are left to that one.

    Raises:
        UsageError: torch has no autocast for ``device_type``.
    """
    with _LOCK:
        if not _SHARERS[device_type] and has_cuda_lists(device_type):
            return lambda: None
        _SHARERS[device_type] += 1  # first: the undo of a sharer that is garbage may run at any moment
        try:
            if device_type not in _SHARED:
                _SHARED[device_type] = use_cuda_lists(device_type)
        except BaseException:
            _SHARERS[device_type] -= 1
            raise

    def undo() -> None:
        with _LOCK:
            _SHARERS[device_type] -= 1
            if not _SHARERS[device_type]:
                _SHARED.pop(device_type)()

    return once(undo)


def has_cuda_lists(device_type: str) -> bool:
    """Whether ``device_type`` follows CUDA's cast lists by ``use_cuda_lists``."""
    return any(tag.startswith(f"{_TAG}-{device_type}-") for tag in cache_tags())


def _policies(lists: CastLists, device_type: str, *, extra: bool) -> dict[str, CastPolicy]:
    """What to add: nothing that the device, or somebody else, has a kernel for; but a ban is lifted."""
    added = lists.added(device_type)
    if not extra:
        added = {name: policy for name, policy in added.items() if name not in lists.remedies}
    banned = {name for name, policy in lists.devices.get(device_type, {}).items() if policy is CastPolicy.BANNED}
    theirs = registered(device_type) - banned
    return {name: policy for name, policy in added.items() if name not in theirs}


def _kernels(policies: dict[str, CastPolicy], device_type: str) -> dict[str, Kernel]:
    made = {name: make_kernel(name, policy, device_type=device_type) for name, policy in policies.items()}
    return {name: kernel for name, kernel in made.items() if kernel is not None}


def _check_not_in_use(device_type: str) -> None:
    if has_cuda_lists(device_type):
        raise CannotRunError(
            f"CUDA's cast lists are in use for {device_type} already; undo them before you ask for them again"
        )


def _digest(policies: dict[str, CastPolicy]) -> str:
    return hashlib.sha256(repr(sorted(policies.items())).encode()).hexdigest()[:16]
