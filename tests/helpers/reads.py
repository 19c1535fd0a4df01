"""Whether the host reads numbers off a device, on devices where nothing else would tell."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Reads(TorchDispatchMode):
    """Counts the operators by which the host reads a number off a device."""

    def __init__(self):
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))
