"""Rules on operators: every spelling of an operator, what is written in place, what lies within what."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ampwise.compat.functions import functions_of, writes_in_place
from ampwise.runtime.casts.op_rules import Formats, is_known, run_under, table_of

BF16, FP32 = torch.bfloat16, torch.float32
low = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).to(BF16)
wide = low.float()
index = torch.zeros(4, 4, dtype=torch.int64)


def under(table, call, *args, **kwargs):
    return run_under(table, call, args, kwargs)


def table(**formats):
    return table_of(frozenset((name, Formats(compute=dtype)) for name, dtype in formats.items()))


SPELLINGS = {
    "softmax": [
        lambda: F.softmax(low, -1),
        lambda: torch.softmax(low, -1),
        lambda: low.softmax(-1),
        lambda: torch.special.softmax(low, -1),
        lambda: nn.Softmax(-1)(low),
        lambda: torch.ops.aten.softmax.int(low, -1),
    ],
    "matmul": [
        lambda: low @ low,
        lambda: torch.matmul(low, low),
        lambda: low.matmul(low),
        lambda: low.__rmatmul__(low),
    ],
    "mm": [lambda: torch.mm(low, low), lambda: low.mm(low)],
    "linear": [lambda: F.linear(low, low), lambda: nn.Linear(4, 4, dtype=BF16)(low)],
    "pow": [lambda: low**2, lambda: low.pow(2), lambda: torch.pow(low, 2), low.square],
    "div": [lambda: low / 3, lambda: low.div(3), lambda: torch.div(low, low), lambda: 3 / low],
    "add": [lambda: low + low, lambda: 1 + low, lambda: torch.add(low, low)],
    "exp": [low.exp, lambda: torch.exp(low)],
    "sum": [low.sum, lambda: torch.sum(low)],
    "mean": [low.mean, lambda: torch.mean(low, -1)],
    "cat": [lambda: torch.cat([low, low]), lambda: torch.cat((low, low), dim=1)],
    "layer_norm": [lambda: F.layer_norm(low, (4,)), lambda: torch.layer_norm(low, (4,))],
    "rms_norm": [lambda: F.rms_norm(low, (4,)), lambda: torch.rms_norm(low, (4,))],
    "conv2d": [lambda: F.conv2d(low[None, None], low[None, None])],
    "cross_entropy_loss": [lambda: F.cross_entropy(low, index[0])],
    "scaled_dot_product_attention": [lambda: F.scaled_dot_product_attention(low[None], low[None], low[None])],
    "scatter_add": [lambda: low.scatter_add(0, index, low), lambda: torch.scatter_add(low, 0, index, wide)],
    "index_add": [lambda: low.index_add(0, index[0], low), lambda: torch.index_add(low, 0, index[0], wide)],
    "linalg_vector_norm": [lambda: torch.linalg.vector_norm(low)],
    "gelu": [lambda: F.gelu(low)],
    "einsum": [lambda: torch.einsum("ij,jk->ik", low, low)],
}


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in SPELLINGS.items() for call in calls])
def test_every_spelling_follows_the_rule(name, call):
    asked = table(**{name: FP32})
    assert under(asked, call).dtype is FP32
    with torch.autocast("cpu", BF16):
        assert under(asked, call).dtype is FP32


def test_another_operator_does_not():
    assert under(table(softmax=FP32), low.exp).dtype is BF16


def test_a_rule_reaches_down_too():
    with torch.autocast("cpu", BF16):
        assert under(table(linear=BF16, exp=BF16), lambda: F.linear(wide, wide).exp()).dtype is BF16
    assert under(table(exp=BF16), wide.exp).dtype is FP32, "what runs in fp32 around it takes nothing else"
    assert torch.equal(under(table(exp=BF16), wide.exp), low.exp().float())


def test_fp64_is_left_and_can_be_asked_for():
    assert under(table(exp=FP32), wide.double().exp).dtype is torch.float64
    assert under(table(exp=torch.float64), wide.exp).dtype is torch.float64


@pytest.mark.parametrize(
    "write",
    [
        lambda out, src: out.scatter_add_(0, index, src),
        lambda out, src: out.index_add_(0, index[0], src),
        lambda out, src: out.add_(src),
        lambda out, src: out.__iadd__(src),
        lambda out, src: torch.add(out, src.to(out.dtype), out=out),
    ],
)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_what_is_written_in_place_keeps_its_dtype_and_is_written(write, dtype):
    out, src = torch.zeros(4, 4, dtype=dtype), torch.ones(4, 4, dtype=BF16)
    result = under(table(scatter_add=FP32, index_add=FP32, add=FP32), write, out, src)
    assert result is out
    assert out.dtype is dtype
    assert out.abs().sum() > 0


def test_an_inner_table_has_the_last_word():
    outer = table(softmax=FP32, exp=FP32)
    inner = table_of(frozenset({("softmax", Formats(compute=BF16)), ("exp", None)}))

    def calls():
        return F.softmax(low, -1).dtype, low.exp().dtype

    with torch.autocast("cpu", BF16):
        assert under(outer, calls) == (FP32, FP32)
        assert under(outer, lambda: under(inner, calls)) == (BF16, BF16)
        assert under(outer, lambda: (under(inner, calls), calls()))[1] == (FP32, FP32)


def test_a_table_is_one_object_wherever_it_goes():
    one = table(softmax=FP32)
    assert pickle.loads(pickle.dumps(one)) is one
    assert table(softmax=FP32) is one
    assert table(softmax=BF16) is not one


def test_an_error_leaves_no_mode():
    with pytest.raises(RuntimeError):
        under(table(linear=FP32), lambda: F.linear(low, torch.ones(3, 3)))
    assert torch._C._len_torch_function_stack() == 0
    assert low.exp().dtype is BF16


@pytest.mark.leaves_behind("a registered kernel")
def test_an_operator_of_the_users_own():
    @torch.library.custom_op("ampwise_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autocast("cpu", BF16)
    asked = table(**{"ampwise_test::twice": FP32})
    assert is_known("ampwise_test::twice")
    assert not is_known("ampwise_test::thrice")
    with torch.autocast("cpu", BF16):
        assert twice(wide).dtype is BF16
        assert under(asked, twice, wide).dtype is FP32
        assert under(asked, torch.ops.ampwise_test.twice, low).dtype is FP32

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x):
        return run_under(asked, twice, (x,), {})

    assert compiled(low).dtype is FP32


def test_a_composite_is_one_call():
    attention = nn.MultiheadAttention(4, 2)
    with torch.autocast("cpu", BF16):
        plain = attention(wide, wide, wide)[0]
        inside = under(table(softmax=FP32), attention, wide, wide, wide)[0]
        whole = under(table(_native_multi_head_attention=FP32), attention, wide, wide, wide)[0]
    assert inside.dtype is plain.dtype
    assert whole.dtype is FP32


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (torch.Tensor.add_, True),
        (torch.Tensor.__iadd__, True),
        (torch.Tensor.__setitem__, True),
        (torch.ops.aten.index_put_, True),
        (torch.ops.aten.index_put_.default, True),
        (torch.Tensor.add, False),
        (torch.Tensor.__add__, False),
        (torch.ops.aten.add.Tensor, False),
    ],
)
def test_which_functions_write(function, expected):
    assert writes_in_place(function) is expected


def test_no_function_spells_what_is_no_operator():
    assert functions_of("no_such_operator") == frozenset()
