"""Graphs on the CPU for tests: the operators that ran while recording run again, on the same memory, without Python."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select")


class SyncError(RuntimeError):
    """What CUDA raises when the host reads from a stream that is being captured."""


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []
        self.before = []
        self._known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in READS:
            raise SyncError(f"{func} while a step is recorded")
        for one in _tensors([args, kwargs]):
            if _place(one) not in self._known:
                self._known.add(_place(one))
                self.before.append((one, one.detach().clone()))
        out = func(*args, **(kwargs or {}))
        self._known.update(_place(one) for one in _tensors([out]))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class CpuGraphs:
    """As CUDA graphs: what was allocated while recording stays where it is, and Python does not run again.

    Recording has its effect, so what was written to and the random state are put back after it.
    """

    def __init__(self):
        self.num_recorded = self.num_replayed = self.num_warm_ups = 0

    def warm_up(self, body):
        self.num_warm_ups += 1
        return body()

    def record(self, body):
        generator = torch.get_rng_state()
        recorder = _Recorder()
        try:
            with recorder:
                returned = body()
        finally:
            with torch.no_grad():
                for one, value in recorder.before:
                    one.copy_(value)
            torch.set_rng_state(generator)
        self.num_recorded += 1

        def replay():
            self.num_replayed += 1
            with torch.no_grad():
                for func, args, kwargs, out in recorder.calls:
                    _again(func, args, kwargs, out)

        return replay, returned


def _again(func, args, kwargs, out):
    if func.is_view or "detach" in str(func):
        return
    given = {_place(one) for one in _tensors([args, kwargs])}
    again = func(*args, **kwargs)
    for old, new in zip(_tensors([out]), _tensors([again]), strict=True):
        if _place(old) not in given and old.numel():
            old.copy_(new)


def _place(tensor):
    return tensor.untyped_storage().data_ptr()


def _tensors(nested):
    leaves, _ = torch.utils._pytree.tree_flatten(nested)
    return [one for one in leaves if isinstance(one, torch.Tensor)]
