"""``custom_fwd`` and ``custom_bwd`` run backward as forward ran, in both styles of an autograd Function."""

from typing import ClassVar, NamedTuple

import pytest
import torch

from ampwise import custom_bwd, custom_fwd
from ampwise._base.errors import UsageError
from ampwise.interpose.custom_function import knows_autocast

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


class Pair(NamedTuple):
    left: object
    right: object


def with_ctx(fwd=custom_fwd, bwd=custom_bwd):
    class Multiply(torch.autograd.Function):
        seen: ClassVar = []

        @staticmethod
        @fwd
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            out = x @ w
            Multiply.seen.append((x.dtype, out.dtype))
            return out

        @staticmethod
        @bwd
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            Multiply.seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            return grad @ w.t(), x.t() @ grad

    return Multiply


def with_setup_context(fwd=custom_fwd, bwd=custom_bwd):
    class Multiply(torch.autograd.Function):
        seen: ClassVar = []

        @staticmethod
        @fwd
        def forward(x, w):
            out = x @ w
            Multiply.seen.append((x.dtype, out.dtype))
            return out

        @staticmethod
        def setup_context(ctx, inputs, output):  # noqa: ARG004 - torch's signature
            ctx.save_for_backward(*inputs)

        @staticmethod
        @bwd
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            Multiply.seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            return grad @ w.t(), x.t() @ grad

    return Multiply


def operands():
    torch.manual_seed(0)
    return torch.randn(2, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)


def gradients(function, *, dtype):
    x, w = operands()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        out = function.apply(x, w)
    out.float().square().sum().backward()
    return [x.grad, w.grad]


STYLES = pytest.mark.parametrize("style", [with_ctx, with_setup_context])


@STYLES
@pytest.mark.parametrize("dtype", [None, BF16, FP16])
def test_backward_runs_in_forwards_state(style, dtype):
    function = style()
    gradients(function, dtype=dtype)
    (_, out_dtype), (enabled, backward_dtype) = function.seen
    assert out_dtype is (dtype or FP32)
    assert enabled is (dtype is not None)
    assert dtype is None or backward_dtype is dtype


@STYLES
def test_one_function_follows_each_calls_own_state(style):
    function = style()
    for dtype in (BF16, None, FP16):
        gradients(function, dtype=dtype)
    assert [enabled for enabled, _ in function.seen[1::2]] == [True, False, True]
    assert function.seen[5][1] is FP16


@STYLES
def test_cast_inputs_runs_forward_and_backward_without_autocast(style):
    function = style(fwd=custom_fwd(cast_inputs=BF16))
    gradients(function, dtype=BF16)
    assert function.seen[0] == (BF16, BF16)
    assert function.seen[1][0] is False
    function = style(fwd=custom_fwd(cast_inputs=BF16))
    gradients(function, dtype=None)
    assert function.seen[0] == (FP32, FP32)


@pytest.mark.parametrize("cast_inputs", [None, FP32, BF16])
@pytest.mark.parametrize("dtype", [None, BF16])
@STYLES
def test_gradients_are_those_of_torchs(style, dtype, cast_inputs):
    def theirs_fwd(method):
        return torch.amp.custom_fwd(method, device_type="cpu", cast_inputs=cast_inputs)

    theirs = with_ctx(theirs_fwd, torch.amp.custom_bwd(device_type="cpu"))
    ours = style(custom_fwd(cast_inputs=cast_inputs), custom_bwd)
    for mine, one in zip(gradients(ours, dtype=dtype), gradients(theirs, dtype=dtype), strict=True):
        assert torch.equal(mine, one)


@STYLES
def test_torchs_custom_bwd_understands_ours(style):
    function = style(custom_fwd(device_type="cpu"), torch.amp.custom_bwd(device_type="cpu"))
    gradients(function, dtype=BF16)
    assert function.seen[1] == (True, BF16)


def test_torchs_still_breaks_on_setup_context():
    function = with_setup_context(torch.amp.custom_fwd(device_type="cpu"), torch.amp.custom_bwd(device_type="cpu"))
    with pytest.raises(AttributeError, match="_fwd_used_autocast"):
        gradients(function, dtype=BF16)


def test_a_subclass_and_its_parent_keep_their_own_setup_context():
    parent = with_setup_context()
    child = type("Child", (parent,), {})
    for function in (child, parent, child):
        gradients(function, dtype=BF16)
    assert all(enabled for enabled, _ in parent.seen[1::2])


def test_transforms_of_functorch_work():
    function = with_setup_context()
    x, w = (one.detach() for one in operands())
    with torch.autocast("cpu", dtype=BF16):
        grad = torch.func.grad(lambda x: function.apply(x, w).float().square().sum())(x)
    assert torch.equal(grad, gradients(function, dtype=BF16)[0])
    assert function.seen[1] == (True, BF16)


@pytest.mark.filterwarnings("ignore")  # Dynamo's own
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@STYLES
def test_it_compiles(style, backend):
    function = style()
    x, w = operands()
    expected = gradients(style(), dtype=BF16)

    def forward(x, w):
        with torch.autocast("cpu", dtype=BF16):
            return function.apply(x, w)

    torch.compile(forward, backend=backend)(x, w).float().square().sum().backward()
    assert torch.equal(x.grad, expected[0])


def test_arguments_of_every_kind_are_cast_or_left_alone():
    seen = {}

    @custom_fwd(cast_inputs=BF16)
    def forward(*args, **kwargs):
        seen.update(kwargs, args=args)

    with torch.autocast("cpu", dtype=BF16):
        one = torch.ones(1)
        forward([one, "a"], Pair(one, 3), ids=torch.ones(1, dtype=torch.int64), wide=one.double(), many={"x": one})
    (listed, pair) = seen["args"]
    assert (listed[0].dtype, listed[1], pair.left.dtype, pair.right) == (BF16, "a", BF16, 3)
    assert (seen["ids"].dtype, seen["wide"].dtype, seen["many"]["x"].dtype) == (torch.int64, torch.float64, BF16)


def test_a_backward_without_a_forward_is_refused():
    function = with_ctx(fwd=lambda method: method)
    with pytest.raises(UsageError, match="forward does not wear custom_fwd"):
        gradients(function, dtype=BF16)


@STYLES
def test_run_sees_that_such_a_function_was_written_for_autocast(style):
    assert knows_autocast(style())
    assert not knows_autocast(style(lambda method: method, lambda method: method))


def test_a_subclass_with_a_forward_of_its_own_has_its_own_state_in_an_inherited_setup_context():
    parent = with_setup_context()

    class Child(parent):
        @staticmethod
        @custom_fwd(cast_inputs=torch.float32)
        def forward(x, w):
            return x @ w

    x, w = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        outs = [function.apply(x, w) for function in (parent, Child, parent, Child)]
    parent.seen.clear()
    for out in outs:
        out.float().sum().backward()
    assert [is_on for is_on, _ in parent.seen] == [True, False, True, False]
