"""Lists the operators of torch that run in fp32 but raise under autocast when some of their tensors arrive in bf16.

A script of its own, because importing torch's operator database changes flags of the process.
Usage: ``mixed_dtypes.py all|SEED`` (a seed picks a tenth); prints JSON. ``stock`` is what raises without the lists,
of a few operators known to.
"""

import importlib.util
import json
import random
import sys
import types
import unittest
import warnings

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ampwise.interpose.cast_lists import use_cuda_lists

GAPS = ("lerp", "index_add", "linalg.det")
NUM_SAMPLES = 12
NUM_OPERATORS_IN_A_SAMPLE = 60


def load_op_db():
    """OpInfo imports a package for expect tests, of which it uses nothing here."""
    if importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


def functions(op):
    name = ".".join(filter(None, (op.name, op.variant_test_name)))
    return [(n, f) for n, f in ((name, op.op), (f"{name}_", op.inplace_variant)) if f is not None]


def is_fp32(value):
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def call(function, leaves, spec, low):
    """The function with the leaves at the indices ``low`` in bf16 and the others as they are."""
    given = [
        (leaf.bfloat16() if index in low else leaf.clone()) if is_fp32(leaf) else leaf
        for index, leaf in enumerate(leaves)
    ]
    input_, args, kwargs = tree_unflatten(given, spec)
    return function(input_, *args, **kwargs)


def works(function, leaves, spec, low=(), *, enabled=False):
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            call(function, leaves, spec, low)
    except Exception:  # noqa: BLE001 - whatever an operator raises
        return False
    return True


def failing(ops):
    """The functions that fail on some sample only under autocast and only for a tensor in bf16; how many were tried."""
    found, num_tried = set(), 0
    for op in ops:
        samples = list(op.sample_inputs("cpu", torch.float32))[:NUM_SAMPLES]
        for name, function in functions(op):
            for sample in samples:
                if name.endswith("_") and sample.broadcasts_input:
                    continue
                leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
                fp32 = [index for index, leaf in enumerate(leaves) if is_fp32(leaf)]
                if not works(function, leaves, spec):
                    continue
                variants = [(index,) for index in fp32] if len(fp32) > 1 else []
                for low in [*variants, tuple(fp32)]:
                    num_tried += 1
                    if not works(function, leaves, spec, low, enabled=True):
                        found.add(name)
    return found, num_tried


def main(which):
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ops = load_op_db()
    stock, _ = failing([op for op in ops if op.name in GAPS])
    use_cuda_lists("cpu")
    chosen = ops if which == "all" else random.Random(which).sample(ops, k=NUM_OPERATORS_IN_A_SAMPLE)
    failed, num_tried = failing(chosen)
    print(json.dumps({"failed": sorted(failed), "num_tried": num_tried, "stock": sorted(stock)}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
