"""Runs torch's own samples of operators twice, for real on the CPU and on the imaginary GPU, and compares sizes.

A process of its own: ``python operator_audit.py fp32|bf16 GROUP NUM_GROUPS``; torch's testing package sets flags of
torch for good. Prints JSON: by operator of the group what differs, and how many samples were compared.
"""

import json
import random
import sys
import warnings
from contextlib import nullcontext
from itertools import islice

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

from ampwise.estimate.imagine import imagined
from ampwise.estimate.order import GpuSpec
from ampwise.interpose.cast_lists import use_cuda_lists
from ampwise.observe.events import EventBus

NUM_SAMPLES = 3
GPU = GpuSpec(name="A100", compute_capability=(8, 0), total_bytes=2**36, context_bytes=0)


def tensors_of(tree):
    return [one for one in tree_flatten(tree)[0] if isinstance(one, Tensor)]


def num_bytes(tensors):
    """Of their storages, each once."""
    return sum({id(one.untyped_storage()): one.untyped_storage().nbytes() for one in tensors}.values())


def looks(tensors):
    return [(list(one.shape), str(one.dtype)) for one in tensors]


def sizes(op, given, device):
    """What an operator's forward and backward pass make: shapes, formats, and bytes of storages."""
    place = {}

    def moved(one):
        if not isinstance(one, Tensor):
            return one
        if id(one) not in place:
            place[id(one)] = one.detach().clone().to(device).requires_grad_(one.requires_grad)
        return place[id(one)]

    first, args, kwargs = tree_map(moved, given)
    kwargs = {name: device if isinstance(value, torch.device) else value for name, value in kwargs.items()}
    inputs = list(place.values())
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (saved.append(one.detach()), one)[1], lambda one: one):
        outputs = tensors_of(op(first, *args, **kwargs))
    known = {id(one.untyped_storage()) for one in inputs}
    found = {"outputs": looks(outputs), "output bytes": num_bytes(outputs)}
    found["saved bytes"] = num_bytes([one for one in saved if id(one.untyped_storage()) not in known])
    differentiable = [one for one in outputs if one.requires_grad]
    if differentiable:
        leaves = [one for one in inputs if one.requires_grad]
        seeds = [torch.ones_like(one) for one in differentiable]
        gradients = torch.autograd.grad(differentiable, leaves, seeds, allow_unused=True)
        found["gradients"] = [None if one is None else looks([one]) for one in gradients]
        found["gradient bytes"] = num_bytes([one for one in gradients if one is not None])
    return found


def attempt(op, given, device, autocast):
    try:
        with autocast(device):
            return sizes(op, given, device)
    except Exception as error:  # noqa: BLE001 # what either side refuses is a finding
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def audit(names, precision):
    def autocast(device):
        return nullcontext() if precision == "fp32" else torch.autocast(device, dtype=torch.bfloat16)

    chosen = [op for op in op_db if op.name in names and torch.float32 in op.dtypes]
    given = []
    for op in chosen:
        random.seed(0)
        torch.manual_seed(0)
        samples = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        given.append([(one.input, one.args, one.kwargs) for one in islice(samples, NUM_SAMPLES)])
    # CUDA's cast lists at work on the CPU: for the real side alone
    undo = use_cuda_lists(extra=False) if precision != "fp32" else lambda: None
    real = [[attempt(op, one, "cpu", autocast) for one in each] for op, each in zip(chosen, given, strict=True)]
    undo()
    with imagined(GPU, bus=EventBus(), has_workspaces=False):
        ours = [[attempt(op, one, "cuda", autocast) for one in each] for op, each in zip(chosen, given, strict=True)]
    found = {}
    for op, theirs, mine in zip(chosen, real, ours, strict=True):
        pairs = [(a, b) for a, b in zip(theirs, mine, strict=True) if "error" not in a]
        row = found.setdefault(op.name, {"compared": 0, "different": {}})
        row["compared"] += len(pairs)
        for a, b in pairs:
            wrong = ["error"] if "error" in b else [key for key in a if a[key] != b.get(key)]
            for key in wrong:
                row["different"].setdefault(key, [a.get(key), b.get(key)])
    return found


def main():
    precision, group, num_groups = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    names = sorted({op.name for op in op_db if torch.float32 in op.dtypes})[group::num_groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples use what is deprecated
        sys.stdout.write(json.dumps(audit(set(names), precision)))


if __name__ == "__main__":
    main()
