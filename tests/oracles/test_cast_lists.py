"""The cast lists that ampwise ships are those of the installed torch."""

import re
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ampwise.compat.dispatch import find_overload, registered
from ampwise.interpose.cast_lists import use_cuda_lists
from ampwise.plan.operators import CastPolicy, cast_lists

LISTS = cast_lists(torch.__version__)
HEADER = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
NOT_IN_HEADER = {"cudnn_convolution", "cudnn_convolution_transpose"}


def test_this_torch_has_lists_of_its_own():
    assert LISTS.note is None


@pytest.mark.parametrize("device_type", LISTS.devices)
def test_every_registered_operator_is_listed_and_no_other(device_type):
    assert set(LISTS.devices[device_type]) == registered(device_type)


def macro(name):
    """The overloads of one ``AT_FORALL_...`` list of the header."""
    body = re.search(rf"#define AT_FORALL_{name}\(_\)((?:.*\\\n)*.*)", HEADER)[1]
    return {entry.replace(", ", ".") for entry in re.findall(r"_\((\w+(?:, \w+)?)\)", body)}


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (CastPolicy.LOWER, "LOWER_PRECISION_FP"),
        (CastPolicy.FP32, "FP32"),
        (CastPolicy.FP32_SET_OPT_DTYPE, "FP32_SET_OPT_DTYPE"),
        (CastPolicy.PROMOTE, "PROMOTE"),
    ],
)
def test_cudas_policies_are_the_headers(policy, name):
    listed = {operator for operator, its in LISTS.devices["cuda"].items() if its is policy}
    assert listed - NOT_IN_HEADER == macro(name)


def test_the_overloads_that_get_a_dtype_appended_are_the_headers():
    listed = {operator for operator, its in LISTS.devices["cuda"].items() if its is CastPolicy.FP32_APPEND_DTYPE}
    assert listed == set(re.findall(r'"(norm\.\w+)"', HEADER))


def test_every_remedy_is_an_operator_of_this_torch():
    assert [name for name in LISTS.remedies if find_overload(name) is None] == []


def test_the_in_place_policy_is_for_operators_in_place():
    for name, policy in LISTS.added("cpu").items():
        writes = find_overload(name)._schema.is_mutable
        assert writes == (policy is CastPolicy.TO_SELF), name


x = torch.linspace(0.1, 1, 16).reshape(4, 4)
CPU_CALLS = {
    "linear": lambda t: torch.nn.functional.linear(t, t),
    "bmm": lambda t: torch.bmm(t[None], t[None]),
    "conv1d": lambda t: torch.conv1d(t[None], t[..., None]),
    "scaled_dot_product_attention": lambda t: torch.nn.functional.scaled_dot_product_attention(
        t[None], t[None], t[None]
    ),
    "mse_loss": lambda t: torch.nn.functional.mse_loss(t, t),
    "cross_entropy_loss": lambda t: torch.nn.functional.cross_entropy(t, torch.arange(4)),
    "binary_cross_entropy": lambda t: torch.nn.functional.binary_cross_entropy(t, t),
    "prod": lambda t: t.prod(),
    "quantile": lambda t: torch.quantile(t, 0.5),
    "linalg_qr": lambda t: torch.linalg.qr(t)[0],
    "cat": lambda t: torch.cat([t, x]),
    "stack": lambda t: torch.stack([t, x]),
    "exp": lambda t: t.exp(),
    "relu": lambda t: t.relu(),
}
RESULT = {
    CastPolicy.LOWER: (torch.bfloat16, torch.bfloat16),
    CastPolicy.FP32: (torch.float32, torch.float32),
    CastPolicy.PROMOTE: (torch.float32, torch.float32),
    None: (torch.bfloat16, torch.float32),
}


@pytest.mark.parametrize("name", CPU_CALLS)
def test_the_cpus_policies_are_what_torch_does(name):
    with torch.autocast("cpu", torch.bfloat16):
        got = CPU_CALLS[name](x.bfloat16()).dtype, CPU_CALLS[name](x).dtype
    assert got == RESULT[LISTS.devices["cpu"].get(name)]


CUDA = torch.device("cuda", 0)


def imaginary(tensor):
    """A tensor that torch dispatches as a CUDA tensor though no such device is there."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.Tensor._make_subclass(torch.Tensor, tensor, False, device_for_backend_keys=CUDA)


class ImaginaryCuda(TorchDispatchMode):
    """Computes the shape and dtype of what a CUDA device would."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(True)
            return tree_map(imaginary, func(*args, **(kwargs or {})))


@pytest.fixture
def cuda_autocast():
    torch.set_autocast_enabled("cuda", True)
    dtype = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.float16)
    yield
    torch.set_autocast_dtype("cuda", dtype)
    torch.set_autocast_enabled("cuda", False)


def test_the_kernels_work_under_cudas_autocast_key(cuda_autocast):
    low = imaginary(torch.empty(4, 8, dtype=torch.float16, device="meta"))
    wide = imaginary(torch.empty(4, 8, device="meta"))
    labels = imaginary(torch.empty(4, dtype=torch.long, device="meta"))
    functional = torch.nn.functional
    with ImaginaryCuda():
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            functional.binary_cross_entropy(low, low)
        undo = use_cuda_lists("cuda")
        try:
            found = [
                t.dtype
                for t in (
                    low.mean(),
                    low.sigmoid(),
                    functional.binary_cross_entropy(low, wide),
                    functional.cross_entropy(low, labels),
                    torch.lerp(wide, low, 0.5),
                    wide.index_add_(0, labels, low),
                )
            ]
        finally:
            undo()
        assert found == [torch.float32] * 6
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            functional.binary_cross_entropy(low, low)
