"""Products of sparse matrices work under a CPU's autocast, whatever their layout, and cost the others nothing."""

import warnings

import pytest
import torch

from ampwise.interpose.cast_lists import use_cuda_lists
from ampwise.interpose.sparse_matmul import multiply_sparse_in_fp32

LAYOUTS = {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "csc": torch.Tensor.to_sparse_csc}
PRODUCTS = {
    "sparse @ dense": lambda sparse, dense: sparse @ dense,
    "dense @ sparse": lambda sparse, dense: dense @ sparse,
    "sparse @ vector": lambda sparse, dense: sparse @ dense[0],
    "sparse @ sparse": lambda sparse, dense: (sparse @ sparse).to_dense() * dense,
    "addmm": lambda sparse, dense: torch.addmm(dense, sparse, dense),
    "linear": lambda sparse, dense: torch.nn.functional.linear(dense, sparse),
    "sparse.mm": torch.sparse.mm,
}


@pytest.fixture
def remedy():
    undos = use_cuda_lists("cpu"), multiply_sparse_in_fp32()
    yield undos[1]
    for undo in undos:
        undo()


@pytest.fixture(autouse=True)
def beta_state():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CS. tensor support is in beta state")
        yield


def with_gradient(product, layout, *, dtype):
    """The product and its gradient; a small integer matrix has the same in any precision."""
    torch.manual_seed(0)
    matrix, dense = torch.eye(4) * torch.randint(1, 5, (4,)), torch.randint(-4, 4, (4, 4)).float().requires_grad_()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        result = product(layout(matrix), dense)
    result.float().sum().backward()
    return result.detach().float(), dense.grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.usefixtures("remedy")
def test_a_product_is_as_in_fp32(product, layout, dtype):
    want, got = (with_gradient(PRODUCTS[product], LAYOUTS[layout], dtype=one) for one in (None, dtype))
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


def test_a_script_that_writes_into_a_low_tensor_gets_it_filled(remedy):
    factors = torch.eye(3).to_sparse_csr().bfloat16(), torch.ones(3, 3, dtype=torch.bfloat16)
    out = torch.empty(3, 3, dtype=torch.bfloat16)
    assert torch.mm(*factors, out=out) is out
    assert torch.equal(out, factors[1])
    remedy()
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.mm(*factors, out=out)
