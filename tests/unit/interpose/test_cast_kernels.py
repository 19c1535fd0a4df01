import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ampwise.interpose.cast_kernels import make_kernel
from ampwise.interpose.cast_lists import use_cuda_lists
from ampwise.plan.operators import CastPolicy

NARROW = (torch.bfloat16, torch.float16)


@pytest.fixture
def lists():
    undo = use_cuda_lists("cpu")
    yield
    undo()


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 3
weight, bias = torch.linspace(0.5, 2, 6), torch.linspace(-1, 1, 6)

IN_FP32 = {
    "softmax": lambda x: x.softmax(-1),
    "F.softmax": lambda x: F.softmax(x, dim=0),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (6,), weight, bias),
    "layer_norm without weight": lambda x: F.layer_norm(x, (6,)),
    "group_norm": lambda x: F.group_norm(x, 2, weight, bias),
    "rms_norm": lambda x: F.rms_norm(x, (6,), weight),
    "mean": lambda x: x.mean(),
    "mean over a dim": lambda x: torch.mean(x, 1, keepdim=True),
    "sum": lambda x: x.sum(),
    "sum over dims": lambda x: torch.sum(x, (0, 1)),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "norm": torch.norm,
    "Tensor.norm of p and dim": lambda x: x.norm(3, dim=1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 1),
    "matrix_norm": torch.linalg.matrix_norm,
    "nuclear norm": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "exp": lambda x: x.exp(),
    "log": lambda x: (x.abs() + 1).log(),
    "pow": lambda x: x**3,
    "pow of tensors": lambda x: x.abs() ** x,
    "scalar to a power": lambda x: 2**x,
    "sigmoid": lambda x: x.sigmoid(),
    "mse_loss": lambda x: F.mse_loss(x, x * 0.5),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1),
    "svd": torch.linalg.svdvals,
    "histogram with weight": lambda x: torch.histogram(x, 3, weight=x.abs())[0],
}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", IN_FP32)
def test_equals_the_operator_on_fp32_bit_for_bit(lists, name, dtype):
    low = x.to(dtype)
    with autocast():
        got = IN_FP32[name](low)
    expected = IN_FP32[name](low.float())
    assert got.dtype is torch.float32
    if name in ("log", "mse_loss", "cosine_similarity", "pow of tensors", "histogram with weight"):
        # what stands between is rounded to the low precision
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    else:
        assert torch.equal(got, expected)


@pytest.mark.parametrize("name", IN_FP32)
def test_fp32_is_not_touched(lists, name):
    with autocast():
        got = IN_FP32[name](x)
    assert torch.equal(got, IN_FP32[name](x))


@pytest.mark.parametrize("name", ["softmax", "mean", "norm", "exp", "layer_norm without weight"])
def test_float64_and_integers_pass(lists, name):
    with autocast():
        assert IN_FP32[name](x.double()).dtype is torch.float64
        assert torch.arange(3).sum().dtype is torch.int64


@pytest.mark.parametrize(
    "name", sorted(set(IN_FP32) - {"svd", "matrix_norm", "nuclear norm", "histogram with weight", "prod"})
)
def test_gradients_come_back_in_the_inputs_dtype(lists, name):
    low = x.bfloat16().requires_grad_()
    with autocast():
        out = IN_FP32[name](low)
    out.sum().backward()
    assert low.grad.dtype is torch.bfloat16
    reference = low.detach().float().requires_grad_()
    IN_FP32[name](reference).sum().backward()
    torch.testing.assert_close(low.grad.float(), reference.grad, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("call", [torch.softmax, torch.sum, torch.mean, torch.cumsum, torch.log_softmax])
def test_a_dtype_that_is_named_is_kept(lists, call):
    with autocast():
        assert call(x.bfloat16(), 0, dtype=torch.bfloat16).dtype is torch.bfloat16
        assert call(x.bfloat16(), 0, dtype=torch.float64).dtype is torch.float64


INTO_SELF = {
    "setitem": lambda self, v: self.__setitem__(torch.tensor([0, 2]), v[:2]),
    "setitem by a mask": lambda self, v: self.__setitem__(self > 100, v[0, 0]),
    "index_put_": lambda self, v: self.index_put_((torch.tensor([1]),), v[:1], accumulate=True),
    "index_add_": lambda self, v: self.index_add_(0, torch.tensor([0, 1]), v[:2], alpha=2),
    "index_copy_": lambda self, v: self.index_copy_(0, torch.tensor([0, 1]), v[:2]),
    "scatter_": lambda self, v: self.scatter_(0, torch.zeros(1, 4, dtype=torch.long), v[:1]),
    "scatter_reduce_": lambda self, v: self.scatter_reduce_(0, torch.zeros(2, 4, dtype=torch.long), v[:2], "sum"),
    "scatter_add_": lambda self, v: self.scatter_add_(0, torch.zeros(2, 4, dtype=torch.long), v[:2]),
    "masked_scatter_": lambda self, v: self.masked_scatter_(self > 0.5, v),
    "put_": lambda self, v: self.put_(torch.tensor([3]), v[0, :1]),
    "addmm_": lambda self, v: self.addmm_(v, v, beta=0.5),
    "addmv_": lambda self, v: self[0].addmv_(v, v[0]),
    "baddbmm_": lambda self, v: self[None].baddbmm_(v[None], v[None]),
    "lerp_": lambda self, v: self.lerp_(v, 0.25),
    "lerp_ by a tensor": lambda self, v: self.lerp_(v, v),
}


@pytest.mark.parametrize("name", INTO_SELF)
@pytest.mark.parametrize(("self_dtype", "other"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_what_is_written_takes_the_dtype_of_what_it_is_written_to(lists, name, self_dtype, other):
    values = (x[:4, :4] / 8).to(other)
    written, expected = (torch.linspace(0, 1, 16).reshape(4, 4).to(self_dtype) for _ in range(2))
    address = written.data_ptr()
    with autocast():
        INTO_SELF[name](written, values)
    INTO_SELF[name](expected, values.to(self_dtype))
    assert (written.dtype, written.data_ptr()) == (self_dtype, address)
    assert torch.equal(written, expected)


PROMOTED = {
    "isclose": torch.isclose,
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "index_add": lambda a, b: a.index_add(0, torch.tensor([0, 1]), b[:2]),
    "index_put": lambda a, b: a.index_put((torch.tensor([0]),), b[:1]),
    "scatter": lambda a, b: a.scatter(0, torch.zeros(1, 6, dtype=torch.long), b[:1]),
    "masked_scatter": lambda a, b: a.masked_scatter(a > 0, b),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "meshgrid": lambda a, b: torch.meshgrid(a[0], b[0], indexing="ij")[1],
    "complex": torch.complex,
}


@pytest.mark.parametrize("name", PROMOTED)
def test_the_widest_dtype_wins(lists, name):
    low = x.bfloat16()
    with autocast():
        for mixed in ((low, x), (x, low)):
            wide = [tensor.float() for tensor in mixed]
            assert torch.equal(PROMOTED[name](*mixed), PROMOTED[name](*wide))
        assert torch.allclose(low, low.float())


def test_promotion_leaves_what_agrees():
    undo = use_cuda_lists("cpu")
    try:
        with autocast():
            assert torch.lerp(x.bfloat16(), x.bfloat16(), 0.5).dtype is torch.bfloat16
    finally:
        undo()


@pytest.mark.parametrize("policy", [CastPolicy.LOWER, CastPolicy.BANNED])
def test_torchs_own_policies_have_no_kernel(policy):
    with pytest.raises(ValueError, match="torch's own policy"):
        make_kernel("exp", policy, device_type="cpu")


def test_an_overload_this_torch_lacks_is_passed_over():
    assert make_kernel("exp.not_yet", CastPolicy.FP32, device_type="cpu") is None
