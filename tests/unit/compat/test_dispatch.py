import gc

import pytest
import torch

from ampwise.compat.dispatch import (
    below_autocast,
    find_overload,
    has_autocast_key,
    register_kernels,
    registered,
    signature,
)


def test_keys():
    assert has_autocast_key("cpu")
    assert has_autocast_key("cuda")
    assert not has_autocast_key("toaster")


def test_find_overload():
    assert find_overload("softmax.int") is torch.ops.aten.softmax.int
    assert find_overload("exp") is torch.ops.aten.exp.default
    assert find_overload("exp.never") is None
    assert find_overload("never_heard_of") is None


@pytest.mark.parametrize(
    ("name", "nested", "dtype_index", "defaults"),
    [
        ("softmax.int", False, 2, (None, None, None)),
        ("exp", False, None, (None,)),
        ("cat", True, None, (None, 0)),
        ("histogram.bins_tensor", True, None, (None, None)),
        ("norm.ScalarOpt_dim", False, None, (None, None, None, False)),
    ],
)
def test_signature(name, nested, dtype_index, defaults):
    found = signature(find_overload(name))
    assert (found.has_nested_tensors, found.dtype_index, found.defaults) == (nested, dtype_index, defaults)


def test_below_autocast():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with below_autocast("cpu")():
            assert (x @ x).dtype is torch.float32
        assert (x @ x).dtype is torch.bfloat16


def make_kernel():
    def kernel(tensor):
        with below_autocast("cpu")():
            return tensor.double().exp()

    return kernel


def test_kernels_come_and_go():
    before = registered("cpu")
    undo = register_kernels("cpu", {"exp": make_kernel()})
    try:
        assert registered("cpu") - before == {"exp"}
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.ones(2).exp().dtype is torch.float64
    finally:
        undo()
    assert registered("cpu") == before
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.ones(2).exp().dtype is torch.float32


def test_kernels_stay_when_nobody_keeps_the_undo():
    kernel = make_kernel()
    register_kernels("cpu", {"exp": kernel})
    gc.collect()
    try:
        assert "exp" in registered("cpu")
    finally:
        kernel.library._destroy()


def test_a_failure_registers_nothing():
    before = registered("cpu")
    with pytest.raises(TypeError):
        register_kernels("cpu", {"exp": make_kernel(), "log": "not a function"})
    assert registered("cpu") == before
