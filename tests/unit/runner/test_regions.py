# ruff: noqa: ARG004 - autograd.Function fixes its arguments
"""Where autocast is on, off, and cached in an injected script; torch.compile included."""

import threading

import pytest
import torch
from torch import nn

from ampwise.compat.autograd import is_inside_backward
from ampwise.observe.events import EventBus
from ampwise.runner.inject import inject
from ampwise.runner.spec import Lists
from ampwise.runtime.hardware.device import Choice


def is_on():
    return torch.is_autocast_enabled("cpu")


@pytest.fixture
def injected():
    choice = Choice(precision="bf16", reason="asked for", slow_factor=None, device="cpu")
    with inject(choice=choice, lists=Lists.STOCK, bus=EventBus()) as result:
        yield result


class Spy(nn.Linear):
    """Notes the state that each forward pass meets."""

    def __init__(self):
        super().__init__(2, 2)
        self.seen = []

    def forward(self, x):
        self.seen.append((is_on(), torch.is_autocast_cache_enabled()))
        return super().forward(x)


class Noting(torch.optim.SGD):
    """Notes the state that its update meets."""

    seen = ()

    def step(self, closure=None):
        self.seen = (*self.seen, is_on())
        return super().step(closure)


def test_forward_and_loss_are_inside_backward_and_step_outside(injected):
    net, in_hook = Spy(), []
    opt = Noting(net.parameters(), lr=0.1)
    net.weight.register_hook(lambda _: in_hook.append(is_on()))
    out = net(torch.ones(1, 2))
    assert out.dtype is torch.bfloat16
    assert is_on()
    out.float().sum().backward()
    assert is_on()
    opt.step()
    assert is_on()
    assert (net.seen, in_hook, opt.seen) == ([(True, True)], [False], (False,))
    assert not torch.is_autocast_cache_enabled()


def test_gradients_by_hand_are_taken_outside(injected):
    x, seen = torch.ones(2, requires_grad=True), []
    x.register_hook(lambda _: seen.append(is_on()))
    torch.autograd.grad((x * 2).sum(), x)
    assert seen == [False]
    assert is_on()


def test_what_the_script_switched_off_stays_off(injected):
    net = Spy()
    opt = Noting(net.parameters(), lr=0.1)

    def closure():
        loss = net(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    with torch.autocast("cpu", enabled=False):
        assert net(torch.ones(1, 2)).dtype is torch.float32
        closure()
        assert not is_on()
        opt.step(closure)
        assert not is_on()
    assert is_on()
    assert [on for on, _ in net.seen] == [False, False, False]
    assert injected.left_alone is None


def test_a_closure_runs_as_the_step_was_entered(injected):
    net = Spy()
    opt = Noting(net.parameters(), lr=0.1)

    def closure():
        loss = net(torch.ones(1, 2)).float().sum()
        loss.backward()
        assert is_on()
        return loss

    opt.step(closure)
    assert (net.seen, opt.seen) == ([(True, True)], (False,))


def test_lbfgs_is_kept_in_fp32_and_that_is_said(injected):
    net = Spy()
    opt = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure():
        opt.zero_grad()
        loss = net(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert not any(on for on, _ in net.seen)
    assert injected.notes == ["LBFGS's closure ran in fp32: its line search needs exact losses"]


def test_an_error_in_any_region_leaves_the_state_as_it_was(injected):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ValueError

    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError):
        Failing.apply(weight).sum().backward()
    assert is_on()
    assert not is_inside_backward()
    with pytest.raises(TypeError):
        torch.optim.SGD([weight], lr=0.1).step(1, 2, 3)
    with pytest.raises(RuntimeError):
        nn.Linear(2, 2)(torch.ones(3, 3))
    assert is_on()
    assert not torch.is_autocast_cache_enabled()


def test_within_a_call_a_weight_is_cast_once_also_after_a_region_of_the_models_own(injected):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            first = self.inner(x)
            with torch.autocast("cpu", enabled=False):
                x = x + 1
            return first + self.inner(x)

    kept = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.add(t.data_ptr()) or t, lambda t: t):
        net = Twice()
        net(net.inner(torch.ones(1, 2)).relu())
    weights = [ptr for ptr in kept if ptr != net.inner.weight.data_ptr()]
    assert len(weights) <= 5


def test_threads_inherit_and_each_is_its_own(injected):
    seen = []

    def look():
        seen.append(is_on())
        with torch.autocast("cpu", enabled=False):
            seen.append(is_on())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    with torch.autocast("cpu", enabled=False):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [True, False, False, False]
    assert is_on()


class HalfOnly(torch.autograd.Function):
    """A kernel that takes nothing but half precision (flash-attention)."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype is not torch.bfloat16:
            raise RuntimeError("only support fp16 and bf16 data type")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_a_function_that_refuses_fp32_gets_what_it_wants(injected):
    x = nn.Linear(2, 2)(torch.ones(1, 2))
    for _ in range(2):
        assert HalfOnly.apply(x).dtype is torch.bfloat16


def losses(compiled, *, num_steps=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    model = compiled(net)
    result = []
    for _ in range(num_steps):
        opt.zero_grad()
        loss = model(x).float().pow(2).mean()
        loss.backward()
        opt.step()
        result.append(loss.item())
    return result


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_compute_the_same(injected, backend):
    plain = losses(lambda net: net)
    assert losses(lambda net: torch.compile(net, backend=backend)) == plain
    torch._dynamo.reset()


def in_place(net):
    net.compile(backend="eager")
    return net


def test_models_compiled_in_place_compute_the_same(injected):
    assert losses(in_place) == losses(lambda net: net)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_a_whole_compiled_step_is_counted_and_has_its_regions(injected):
    net, in_hook = Spy(), []
    opt = Noting(net.parameters(), lr=0.1)
    net.weight.register_hook(lambda _: in_hook.append(is_on()))

    @torch.compile(backend="eager")
    def step(x):
        opt.zero_grad()
        loss = net(x).float().sum()
        loss.backward()
        opt.step()
        return loss

    for _ in range(2):
        step(torch.ones(1, 2))
    torch._dynamo.reset()
    assert injected.num_steps == 2
    assert in_hook == [False, False]
    assert opt.seen == (False, False)


@pytest.mark.slow
@pytest.mark.leaves_behind("inductor adds to sys.path")
def test_inductor_computes_nearly_the_same(injected):
    plain = losses(lambda net: net)
    assert losses(torch.compile) == pytest.approx(plain, rel=1e-2)
    torch._dynamo.reset()
