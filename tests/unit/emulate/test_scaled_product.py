"""The fp8 product: torchao's tensorwise recipe, written a second time in fp64."""

import pytest
import torch

from ampwise.emulate.emulation import emulated
from ampwise.emulate.recipes import RECIPES
from ampwise.emulate.rounding import round_to
from ampwise.emulate.scaled_product import quantize, scaled_product

FP8 = RECIPES["fp8_e4m3"]


def numbers(*shape, seed=0, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).bfloat16()


def reference(tensor, format_):
    """What the tensor is once it has been through fp8: ``round(x * s) / s`` in fp64."""
    limit = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}[format_]
    scale = float(torch.tensor(limit / max(tensor.double().abs().max().item(), 1e-12), dtype=torch.float32))
    scaled = (tensor.float() * torch.tensor(scale)).double()
    return round_to(scaled, format_, saturate=True) / scale


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_forward_and_backward_are_the_recipes(name, scale):
    x, w = numbers(3, 5, 16, scale=scale).requires_grad_(), numbers(16, 8, seed=1).requires_grad_()
    out = scaled_product(RECIPES[name])(x, w)
    gradient = numbers(3, 5, 8, seed=2, scale=1e-3)
    out.backward(gradient)
    x8, w8, g8 = reference(x.detach(), name), reference(w.detach(), name), reference(gradient, "fp8_e5m2")
    assert out.dtype is x.grad.dtype is w.grad.dtype is torch.bfloat16
    torch.testing.assert_close(out.double(), x8 @ w8, rtol=2**-8, atol=scale * 1e-4)
    torch.testing.assert_close(x.grad.double(), g8 @ w8.t(), rtol=2**-8, atol=1e-7)
    torch.testing.assert_close(w.grad.double(), torch.einsum("abk,abn->kn", x8, g8), rtol=2**-8, atol=scale * 1e-7)


def test_the_largest_magnitude_is_the_formats_and_zeros_stay():
    codes, scale = quantize(torch.tensor([0.0, -3.0, 1.5]), torch.float8_e4m3fn)
    assert codes.float().tolist() == [0.0, -448.0, 224.0]
    assert scale.item() == pytest.approx(448 / 3)
    for empty in (torch.zeros(4), torch.zeros(0)):
        codes, scale = quantize(empty, torch.float8_e4m3fn)
        assert codes.float().eq(0).all()
        assert scale.isfinite()


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so(bad):
    """torch's cast to fp8_e4m3 alone would make 448 of infinity."""
    x = numbers(4, 16)
    x[0, 0] = bad
    assert not scaled_product(FP8)(x, numbers(16, 8)).isfinite().any()


def test_only_what_is_asked_for_gets_a_gradient():
    x, w = numbers(4, 16), numbers(16, 8).requires_grad_()
    scaled_product(FP8)(x, w).sum().backward()
    assert w.grad is not None
    assert x.grad is None


def test_what_backward_keeps_is_one_byte_a_number():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        scaled_product(FP8)(numbers(4, 16).requires_grad_(), numbers(16, 8))
    assert sorted(t.numel() * t.element_size() for t in kept) == [4, 4, 64, 128]


def moved(call, *tensors):
    """Whether fp8 changes what ``call`` gives under autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = call(*tensors)
        with emulated("fp8"):
            return not torch.equal(call(*tensors), plain)


X, W, BIAS = numbers(6, 16).float(), numbers(8, 16, seed=1).float(), numbers(8, seed=2).float()


def test_products_with_weights_are_in_fp8_and_others_are_not():
    linear = torch.nn.functional.linear
    assert moved(linear, X, W, BIAS)
    assert moved(linear, X.expand(3, 6, 16), W)
    assert moved(torch.addmm, BIAS, X, W.t())
    assert moved(torch.mm, X, W.t())
    assert moved(lambda x, w: x @ w.t(), X.expand(3, 6, 16), W)
    assert not moved(torch.bmm, X.expand(3, 6, 16), W.t().expand(3, 16, 8))
    assert not moved(torch.matmul, X.expand(3, 6, 16), W.t().expand(3, 16, 8))
    assert not moved(torch.nn.functional.conv1d, X.expand(1, 6, 16), numbers(2, 6, 3))
    assert not moved(torch.addmm, BIAS.double(), X.double(), W.t().double())
    assert not moved(torch.autocast("cpu", enabled=False)(linear), X, W)


def test_a_bias_is_added_to_the_rounded_product_and_its_gradient_is_not_quantized():
    x, w, bias = (tensor.clone().requires_grad_() for tensor in (X, W, BIAS))
    with emulated("fp8"), torch.autocast("cpu", dtype=torch.bfloat16):
        out = torch.nn.functional.linear(x, w, bias)
        bare = torch.nn.functional.linear(x, w)
    assert torch.equal(out, bare + bias.bfloat16())
    gradient = numbers(6, 8, seed=5)
    out.backward(gradient)
    assert torch.equal(bias.grad, gradient.sum(0).float())
    assert w.grad.dtype is torch.float32
