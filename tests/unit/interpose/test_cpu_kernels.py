"""The CPU's kernels for narrow products: one rounding of an fp32 result, torch's own refusals, nothing left behind."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ampwise.compat.dispatch import find_overload
from ampwise.interpose.cpu_kernels import compute_in_fp32, round_factors
from ampwise.interpose.cpu_operators import OPERATORS

HALF = torch.float16


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


A, B, C = numbers(5, 7), numbers(7, 4, seed=1), numbers(5, 4, seed=2)
BA, BB, BC = numbers(2, 5, 7), numbers(2, 7, 4, seed=1), numbers(2, 5, 4, seed=2)
IMAGE, FILTER, VOLUME = numbers(2, 4, 6, 6), numbers(4, 2, 3, 3, seed=1), numbers(1, 2, 4, 4, 4)
HEADS = tuple(numbers(2, 2, 6, 8, seed=seed) for seed in range(3))
MASK = numbers(6, 6, seed=4)
CALLS = {
    "mm": (torch.mm, A, B),
    "bmm": (torch.bmm, BA, BB),
    "addmm": (torch.addmm, C, A, B),
    "addmm, scaled": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), C, A, B),
    "baddbmm": (torch.baddbmm, BC, BA, BB),
    "addbmm": (torch.addbmm, C, BA, BB),
    "addmv": (torch.addmv, C[:, 0].contiguous(), A, B[:, 0].contiguous()),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->ik", a, b), BA, BB),
    "conv1d": (lambda x, w: F.conv1d(x, w, groups=2), IMAGE[:, :, 0], FILTER[:, :, 0]),
    "conv2d": (lambda x, w: F.conv2d(x, w, numbers(4).half().to(x.dtype), padding=1, groups=2), IMAGE, FILTER),
    "conv3d": (F.conv3d, VOLUME, numbers(2, 2, 2, 2, 2)),
    "conv_transpose2d": (F.conv_transpose2d, IMAGE, FILTER),
    "attention": (F.scaled_dot_product_attention, *HEADS),
    "causal attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *HEADS),
    "masked attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, MASK.to(q.dtype)), *HEADS),
    "pow": (lambda x: x.pow(2), A),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), A),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), VOLUME),
}
NOT_NATIVE = {"avg_pool3d"}
"""What torch's CPU does not have in fp16 at all."""


def with_gradients(call, tensors, *, dtype):
    """The result and its gradients, of operands that fp16 has, computed in ``dtype``."""
    leaves = [tensor.to(HALF).to(dtype).requires_grad_() for tensor in tensors]
    out = call(*leaves)
    out.backward(numbers(*out.shape, seed=9).to(HALF).to(dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@pytest.fixture
def emulated():
    undo = compute_in_fp32(HALF)
    yield undo
    undo()


@pytest.mark.parametrize("name", CALLS)
def test_the_result_and_the_gradients_are_fp32s_rounded(name, emulated):
    call, *tensors = CALLS[name]
    expected = with_gradients(call, tensors, dtype=torch.float32)
    found = with_gradients(call, tensors, dtype=HALF)
    for one, wide in zip(found, expected, strict=True):
        assert one.dtype is HALF
        # attention's backward pass starts from its rounded result, which adds roundings of its own
        torch.testing.assert_close(one.float(), wide, rtol=2e-3, atol=2e-3 if "attention" in name else 1e-4)
    if "attention" not in name and name not in {"einsum", "norm"}:
        assert torch.equal(found[0], expected[0].to(HALF))


@pytest.mark.parametrize("name", sorted(set(CALLS) - NOT_NATIVE))
def test_native_fp16_agrees_to_rounding(name):
    call, *tensors = CALLS[name]
    native = with_gradients(call, tensors, dtype=HALF)
    undo = compute_in_fp32(HALF)
    found = with_gradients(call, tensors, dtype=HALF)
    undo()
    for one, other in zip(found, native, strict=True):
        torch.testing.assert_close(one, other, rtol=4e-3, atol=4e-3)


def test_what_torch_lacks_in_fp16_runs(emulated):
    emulated()
    call, *tensors = CALLS["avg_pool3d"]
    with pytest.raises(RuntimeError, match="not implemented for 'Half'"):
        with_gradients(call, tensors, dtype=HALF)


def test_sums_are_taken_in_fp32(emulated):
    """2048 + 1 is 2048 in fp16; a product that sums in it stays there."""
    ones = torch.ones(1, 4096, dtype=HALF)
    assert (ones @ ones.t()).item() == 4096
    assert torch.addmv(torch.zeros(1, dtype=HALF), ones, ones[0]).item() == 4096


def test_overflow_and_underflow_are_fp16s(emulated):
    def product(x, y):
        return (torch.full((1, 1), x, dtype=HALF) @ torch.full((1, 1), y, dtype=HALF)).item()

    assert product(256.0, 255.75) == 65472
    assert product(256.0, 256.0) == float("inf")
    assert product(2.0**-12, 2.0**-12) == 2.0**-24
    assert product(2.0**-12, 2.0**-13) == 0  # half the smallest subnormal: the tie goes to zero
    assert product(2.0**-12, 1.5 * 2.0**-13) == 2.0**-24
    assert torch.tensor([300.0], dtype=HALF).pow(2).item() == float("inf")


def test_the_fused_activation_of_inference_is_rounded_once(emulated):
    wide = torch._addmm_activation(C[0].half().float(), A.half().float(), B.half().float(), use_gelu=True)
    assert torch.equal(torch._addmm_activation(C[0].half(), A.half(), B.half(), use_gelu=True), wide.half())


@pytest.mark.parametrize(
    "write",
    [
        lambda a, b, out: torch.mm(a, b, out=out),
        lambda a, b, out: torch.addmm(out, a, b, out=out),
        lambda a, b, out: out.addmm_(a, b),
        lambda a, b, out: torch.addmm(out.clone(), a, b, out=out),
    ],
)
def test_a_given_tensor_is_written_in_place(write, emulated):
    a, b = A.half(), B.half()
    wide, out = C.half().float(), C.half()
    write(a.float(), b.float(), wide)
    assert write(a, b, out) is out
    assert torch.equal(out, wide.half())
    transposed = C.half().t().contiguous().t()
    assert write(a, b, transposed).stride() == (1, 5)
    assert torch.equal(transposed, wide.half())


def test_an_empty_given_tensor_is_made_to_fit(emulated):
    out = torch.empty(0, dtype=HALF)
    torch.mm(A.half(), B.half(), out=out)
    assert torch.equal(out, torch.mm(A.half(), B.half()))


REFUSED = {
    "dtypes that differ": lambda: torch.mm(A.half(), B),
    "a bias of another dtype": lambda: torch.addmm(C, A.half(), B.half()),
    "a given tensor of another dtype": lambda: torch.mm(A.half(), B.half(), out=torch.empty(5, 4)),
    "shapes that do not fit": lambda: torch.mm(A.half(), A.half()),
    "a filter of another dtype": lambda: F.conv2d(IMAGE.half(), FILTER, groups=2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_torchs_refusals_stay(name, emulated):
    with pytest.raises(RuntimeError) as ours:
        REFUSED[name]()
    emulated()
    with pytest.raises(RuntimeError) as theirs:
        REFUSED[name]()
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


def test_other_dtypes_are_left_alone(emulated):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        a, b = (A * 4).to(dtype), (B * 4).to(dtype)
        inside = a @ b
        emulated()
        assert torch.equal(a @ b, inside)


def test_a_norm_asked_for_in_fp32_comes_in_it(emulated):
    assert torch.linalg.vector_norm(A.half(), dtype=torch.float32).dtype is torch.float32


@pytest.mark.parametrize("begin", [lambda: compute_in_fp32(HALF), lambda: round_factors(torch.round)])
def test_the_undo_puts_torchs_kernels_back(begin):
    def registered():
        return {name: torch.library.get_kernel(f"aten::{name}", "CPU").__repr__() for name in OPERATORS}

    before = registered()
    undo = begin()
    assert registered() != before
    undo()
    undo()
    assert registered() == before


def test_every_operator_of_the_table_is_torchs_and_takes_its_tensors_where_the_table_says():
    for name, row in OPERATORS.items():
        overload = find_overload(name)
        assert overload is not None, name
        arguments = overload._schema.arguments
        assert all("Tensor" in str(arguments[i].type) for i in (*row.factors, *row.fp32)), name
        assert row.num_narrow is None or row.num_narrow < len(overload._schema.returns), name


ROUNDED = [*(name for name in CALLS if name not in {"addmv", "pow", "norm", "avg_pool3d"})]


@pytest.mark.parametrize("name", ROUNDED)
def test_factors_are_rounded_and_what_is_added_is_not(name):
    """Rounding to whole numbers shows which tensors were rounded."""
    call, *tensors = CALLS[name]
    added = 1 if name in {"addmm", "addmm, scaled", "baddbmm", "addbmm"} else 0
    expected = call(*tensors[:added], *(tensor.round() for tensor in tensors[added:]))
    undo = round_factors(torch.round)
    found = call(*tensors)
    undo()
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, call(*tensors))


def test_the_gradient_is_rounded_as_a_factor_of_the_backward_products():
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    undo = round_factors(torch.round)
    (a @ b).backward(C)
    undo()
    torch.testing.assert_close(a.grad, C.round() @ B.round().t())
    torch.testing.assert_close(b.grad, A.round().t() @ C.round())


def test_the_gradient_is_rounded_in_a_convolutions_backward_pass_too():
    x, w = IMAGE.clone().requires_grad_(), FILTER.clone().requires_grad_()
    wide_x, wide_w = IMAGE.round().requires_grad_(), FILTER.round().requires_grad_()
    gradient = numbers(2, 4, 4, 4, seed=5)
    F.conv2d(wide_x, wide_w, groups=2).backward(gradient.round())
    undo = round_factors(torch.round)
    F.conv2d(x, w, groups=2).backward(gradient)
    undo()
    torch.testing.assert_close(x.grad, wide_x.grad)
    torch.testing.assert_close(w.grad, wide_w.grad)


def test_what_attention_keeps_in_fp32_stays_so(emulated):
    out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*(one.half() for one in HEADS))
    assert (out.dtype, logsumexp.dtype) == (HALF, torch.float32)
