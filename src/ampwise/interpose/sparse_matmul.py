"""Gives products of sparse matrices on a CPU a low precision: autocast casts their factors, and torch has no kernel."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ampwise.compat.dispatch import Kernel, replace_kernels

_LOW = frozenset({torch.bfloat16, torch.float16})
_OPERATORS = {
    "SparseCsrCPU": ("mm", "addmm", "mm.out", "addmm.out", "addmv.out"),
    "SparseCPU": ("_sparse_sparse_matmul",),
}
"""The operators that ``matmul``, ``mm``, ``addmm`` and ``linear`` end in, by dispatch key."""


def multiply_sparse_in_fp32() -> Callable[[], None]:
    """Let products of bf16 and fp16 sparse matrices on a CPU be taken in fp32 until the returned undo is called.

    They come out in the low precision, as dense products do. Other products run as before.
    """
    undos = [replace_kernels(key, names, _in_fp32) for key, names in _OPERATORS.items()]

    def undo() -> None:
        for one in undos:
            one()

    return undo


def _in_fp32(original: Kernel) -> Kernel:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        low = next((a.dtype for a in args if isinstance(a, Tensor) and a.dtype in _LOW), None)
        if low is None:
            return original(keys, *args, **kwargs)
        lifted = [a.float() if isinstance(a, Tensor) and a.dtype in _LOW else a for a in args]
        out = kwargs.pop("out", None)
        if out is None:
            return original(keys, *lifted, **kwargs).to(low)
        return out.copy_(original(keys, *lifted, **kwargs, out=out.float()))

    return kernel
