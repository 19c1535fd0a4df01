"""A CPU as if it had a format's hardware: the faults people hit there appear here, and nothing is left behind."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import ampwise
from ampwise._base.errors import CannotRunError, UsageError
from ampwise.emulate.emulation import emulated, emulated_format
from ampwise.emulate.recipes import RECIPES, get_recipe
from ampwise.emulate.rounding import round_to

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, None: None}


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


def step(net, format_, *, x=None):
    """The loss and the gradients of one step in the format's recipe."""
    dtype = DTYPES[RECIPES[format_].autocast]
    net.zero_grad()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = net(numbers(4, 16) if x is None else x).float().square().mean()
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in net.parameters())]


@pytest.mark.parametrize(("format_", "error"), [("tf32", 2e-3), ("fp16", 3e-3), ("bf16", 2e-2), ("fp8_e4m3", 0.2)])
def test_a_step_differs_from_fp32_by_the_formats_rounding(format_, error):
    net = model()
    net(numbers(4, 16)).square().mean().backward()
    exact = [parameter.grad.clone() for parameter in net.parameters()]
    with emulated(format_):
        _, *found = step(net, format_)
    off = max(((a - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True))
    assert error / 50 < off < error


@pytest.mark.parametrize("format_", RECIPES)
def test_a_compiled_step_is_the_eager_one_without_a_graph_break(format_):
    net = model()
    with emulated(format_):
        eager = step(net, format_)
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        traced = step(compiled, format_)
    assert all(torch.equal(one, other) for one, other in zip(eager, traced, strict=True))


@pytest.mark.slow
@pytest.mark.leaves_behind("inductor adds to sys.path")
@pytest.mark.parametrize("format_", ["fp16", "tf32", "fp8_e4m3"])
def test_inductors_step_is_the_emulated_one_but_for_what_it_fuses(format_):
    net = model()
    torch._dynamo.reset()
    with emulated(format_):
        eager = step(net, format_)
        compiled = step(torch.compile(net, fullgraph=True), format_)
    plain = step(net, format_)
    for one, other, unlike in zip(compiled, eager, plain, strict=True):
        apart = (one - other).norm()
        assert apart <= (0.1 if format_.startswith("fp8") else 0.02) * other.norm()
        if format_ != "fp16":  # a CPU's own products in fp16 are as near
            assert apart < (unlike - other).norm()


def test_what_was_compiled_before_is_emulated_too():
    net = torch.compile(model(), backend="aot_eager", fullgraph=True)
    before = step(net, "fp8_e4m3")
    with emulated("fp8"):
        inside = step(net, "fp8_e4m3")
    after = step(net, "fp8_e4m3")
    assert not torch.equal(before[1], inside[1])
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_backward_in_another_thread_is_emulated():
    import threading

    net, found = model(), []
    with emulated("fp16"):
        here = step(net, "fp16")
        thread = threading.Thread(target=lambda: found.append(step(net, "fp16")))
        thread.start()
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(here, found[0], strict=True))


def test_tf32_rounds_the_factors_and_nothing_else():
    a, b, c = numbers(5, 7), numbers(7, 4, seed=1), numbers(5, 4, seed=2)
    with emulated("tf32"):
        found = torch.addmm(c, a, b)
        vector = a @ b[:, 0]
        total = a + a
    torch.testing.assert_close(found, c + round_to(a, "tf32") @ round_to(b, "tf32"), rtol=1e-6, atol=1e-6)
    assert not torch.equal(found, torch.addmm(c, a, b))
    assert torch.equal(vector, a @ b[:, 0])
    assert torch.equal(total, a + a)


@pytest.mark.parametrize("format_", RECIPES)
def test_torch_func_goes_through(format_):
    """fp8's products cannot follow a transform: there they stay in bf16."""
    net = model()
    parameters = dict(net.named_parameters())

    def loss_of(values, x):
        dtype = DTYPES[RECIPES[format_].autocast]
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            return torch.func.functional_call(net, values, (x,)).float().square().mean()

    with emulated(format_):
        per_sample = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(parameters, numbers(4, 16))
        step(net, format_)
    for name, parameter in net.named_parameters():
        off = (per_sample[name].mean(0) - parameter.grad).norm() / parameter.grad.norm()
        assert off < (0.2 if "fp8" in format_ else 0.02)


# --- faults that people hit in fp16, which fp32 on the same machine does not show -------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_t5s_wo_overflows(seed):
    """Its feed-forward's second product goes beyond 65504 (hf/transformers#9295)."""
    torch.manual_seed(seed)
    wi, wo = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False)
    with torch.no_grad():
        wi.weight *= 800
        wo.weight *= 800
    x = F.layer_norm(numbers(4, 16, seed=seed), (16,))
    assert wo(F.relu(wi(x))).isfinite().all()
    with emulated("fp16"), torch.autocast("cpu", dtype=torch.float16):
        hidden = F.relu(wi(x))
        assert hidden.isfinite().all()
        assert wo(hidden).isinf().any()
        with torch.autocast("cpu", enabled=False):
            assert wo(hidden.float()).isfinite().all()  # the known fix


@pytest.mark.parametrize("seed", range(3))
def test_rms_norms_square_overflows_and_its_output_is_zero(seed):
    """No NaN and no infinity at the end: pow -> inf -> rsqrt -> 0 (pytorch#133085)."""
    x = (numbers(4, 16, seed=seed) * 4 + 400).half()

    def norm(h):
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)

    with emulated("fp16"):
        assert norm(x).eq(0).all()
        assert norm(x.float()).abs().mean() > 0.9


def test_small_gradients_underflow_and_the_loss_scale_saves_them():
    """Micikevicius 2018: what is below 2**-25 is zero in fp16."""
    torch.manual_seed(0)
    net = nn.Linear(16, 16, bias=False)
    x = numbers(8, 16)

    def gradient(scale):
        net.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        (out.float().mean() * 1e-6 * scale).backward()
        return net.weight.grad / scale

    with emulated("fp16"):
        lost, saved = gradient(1.0), gradient(2.0**16)
    assert lost.eq(0).all()
    exact = x.sum(0).expand(16, 16) * 1e-6 / 128
    assert ((saved - exact).norm() / exact.norm()) < 1e-3


# --- coming and going -------------------------------------------------------------------------------------------------


def test_it_is_public_and_takes_the_names_users_give():
    assert ampwise.emulated is emulated
    assert ampwise.round_to is round_to
    assert [get_recipe(name).name for name in ("half", "FP16", "fp8", "torch.bfloat16", "e5m2", "tf32")] == [
        "fp16",
        "fp16",
        "fp8_e4m3",
        "bf16",
        "fp8_e5m2",
        "tf32",
    ]


@pytest.mark.parametrize("format_", RECIPES)
def test_it_ends_with_the_context_also_after_an_error(format_):
    a, b = numbers(4, 4), numbers(4, 4, seed=1)

    def products():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return [a @ b, F.linear(a, b)]

    before = [a @ b, *products()]

    def fail():
        with emulated(format_):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(torch.equal(one, other) for one, other in zip(before, [a @ b, *products()], strict=True))


def test_a_second_emulation_is_refused_and_the_first_goes_on():
    x = torch.full((2, 2), 300.0).half()

    def both():
        with emulated("tf32"):
            pass

    with emulated("fp16"):
        with pytest.raises(CannotRunError, match=r"fp16 is emulated already; leave that emulation before .* tf32's"):
            both()
        assert (x @ x).isinf().all()
    both()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fp17", '"fp17" is not a format that can be emulated; did you mean "fp16"'),
        ("int8", '"int8" is an integer format; floating-point ones are emulated: tf32, bf16, fp16'),
        ("torch.uint8", "is an integer format"),
        ("fp32", "fp32 needs no emulation, every machine computes in it; use --precision fp32"),
        ("fp64", "use float64 tensors"),
        ("", "is not a format that can be emulated"),
    ],
)
def test_bad_names(name, text):
    with pytest.raises(UsageError, match=text), emulated(name):
        pass


def test_the_emulated_format_is_told_while_it_is_emulated():
    assert emulated_format() is None
    with emulated("half"):
        assert emulated_format() == "fp16"
    assert emulated_format() is None
