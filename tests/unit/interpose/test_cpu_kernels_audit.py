"""Every emulated call in every layout against native fp16's: shape, dtype, strides, values, and fp32's overflow."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ampwise.interpose.cpu_kernels import compute_in_fp32

HALF = torch.float16
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT,
    "sliced": lambda t: torch.stack([t, t], -1)[..., 0],
    "expanded": lambda t: t[:1].expand(t.shape),
    "offset": lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape),
}
CALLS = {
    "mm": (torch.mm, (3, 4), (4, 2)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 2)),
    "matmul, 3-D by 2-D": (torch.matmul, (2, 3, 4), (4, 2)),
    "linear": (F.linear, (2, 3, 4), (5, 4)),
    "addmm": (torch.addmm, (3, 2), (3, 4), (4, 2)),
    "baddbmm": (torch.baddbmm, (2, 3, 2), (2, 3, 4), (2, 4, 2)),
    "conv1d": (F.conv1d, (2, 3, 6), (4, 3, 3)),
    "conv2d": (F.conv2d, (2, 3, 5, 5), (4, 3, 3, 3)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 3, 4, 4), (3, 2, 3, 3)),
    "attention": (F.scaled_dot_product_attention, (2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4)),
    "pow": (lambda x: x.pow(2), (3, 4)),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), (3, 4)),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 3, 4), (2, 4, 2)),
}
SIZES = {"usual": 1.0, "overflowing": 300.0, "subnormal": 2.0**-10}


def leaves(shapes, layout, size):
    made = [torch.randn(*shape, generator=torch.Generator().manual_seed(n)) * size for n, shape in enumerate(shapes)]
    return [LAYOUTS[layout](one.to(HALF)).requires_grad_() for one in made]


def outcome(call, operands):
    out = call(*operands)
    out.backward(torch.ones_like(out))
    return [out.detach(), *(one.grad for one in operands)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout", "size"), [*itertools.product(CALLS, LAYOUTS, SIZES)], ids=lambda word: word.replace(" ", "_")
)
def test_an_emulated_call_is_native_fp16s(name, layout, size):
    call, *shapes = CALLS[name]
    native = outcome(call, leaves(shapes, layout, SIZES[size]))
    undo = compute_in_fp32(HALF)
    try:
        ours = outcome(call, leaves(shapes, layout, SIZES[size]))
    finally:
        undo()
    for one, other in zip(ours, native, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        near = one.isfinite() & other.isfinite()
        scale = other[near].abs().max().item() if near.any() else 0.0
        assert torch.allclose(one[near].float(), other[near].float(), rtol=4e-3, atol=4e-3 * scale + 2.0**-23)
    # overflow is fp32's result rounded: native kernels that add up in fp16 overflow earlier than a tensor core
    exact = call(*(one.detach().float() for one in leaves(shapes, layout, SIZES[size])))
    sure = (exact.abs() < 65504 * (1 - 4e-3)) | (exact.abs() > 65520 * (1 + 4e-3))
    assert torch.equal(ours[0].isinf()[sure], exact.to(HALF).isinf()[sure])
    if (size, layout) == ("overflowing", "contiguous") and name in {"mm", "bmm", "linear", "conv2d", "pow"}:
        assert any(math.isinf(value) for value in ours[0].flatten().tolist())
