"""torch's own samples of more than 600 operators, forward and backward: the imaginary GPU makes what a real run makes.

The reference is a real run on the CPU, for autocast with CUDA's cast lists. Compared are shapes, formats and bytes of
results and gradients, and the bytes that the forward pass saves for the backward pass. It knows nothing of a CUDA
kernel's own temporaries. What differs is listed, each with its reason; nothing else may, and none may go unnoticed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "helpers" / "operator_audit.py"
NUM_GROUPS = 10
ERROR = {"error"}
RESULT = {"outputs", "output bytes"}
ALL = RESULT | {"saved bytes"}
SAVED = {"saved bytes"}

BOTH = {
    # CUDA's kernels are others: evaluation keeps empty statistics on the CPU alone
    "_native_batch_norm_legit": ALL,
    "native_batch_norm": ALL,
    "nn.functional.batch_norm": SAVED,
    # dropout keeps a mask of bytes, attention a seed and sums, logsigmoid no buffer
    "nn.functional.dropout": SAVED,
    "nn.functional.embedding_bag": SAVED,
    "nn.functional.logsigmoid": SAVED,
    "nn.functional.multilabel_soft_margin_loss": SAVED,
    "nn.functional.multi_head_attention_forward": SAVED,
    "nn.functional.scaled_dot_product_attention": SAVED,
    # no numbers: as many as there can be
    "argwhere": RESULT,
    "masked_select": RESULT,
    "nonzero": RESULT,
    "nn.functional.ctc_loss": SAVED,
    # torch has no sizes without data: a lower bound, and the operator's name
    "geqrf": ERROR,
    "histogram": ERROR,
    "histogramdd": ERROR,
    "index_fill": ERROR,
    "linalg.lstsq": ERROR,
    "nn.functional.fractional_max_pool3d": ERROR,
    "unique_consecutive": ERROR,
    # takes its sections from the host, as on CUDA
    "tensor_split": ERROR,
}
KNOWN = {
    "fp32": BOTH,
    "bf16": {
        **BOTH,
        "nn.functional.binary_cross_entropy": ERROR,  # CUDA's autocast refuses it
        # on CUDA's list of 16 bits, which the CPU's run has not got
        "addmv": ALL,
        "addr": ALL,
        "einsum": ALL | {"gradient bytes"},
        "mv": ALL,
        # on the CPU's list of fp32, which its run keeps
        "pca_lowrank": ALL,
        "svd_lowrank": ALL,
        "nn.functional.linear_cross_entropy": SAVED,
        # a decomposition of torch's that the imaginary GPU runs below autocast: too large by half
        "linalg.pinv": ALL,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", KNOWN)
@pytest.mark.parametrize("group", range(NUM_GROUPS))
def test_what_operators_make_is_what_a_real_run_makes(group, precision):
    pytest.importorskip("expecttest")
    command = [sys.executable, str(SCRIPT), precision, str(group), str(NUM_GROUPS)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    different = {name: set(row["different"]) for name, row in found.items() if row["different"]}
    assert different == {name: keys for name, keys in KNOWN[precision].items() if name in found}
    assert sum(row["compared"] > 0 for row in found.values()) >= 55
