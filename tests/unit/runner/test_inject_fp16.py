# ruff: noqa: ARG005 - hooks have fixed arguments
"""Injected fp16: torch.amp's numbers without the script knowing of a scale; whatever overflows is skipped whole."""

import pickle
import warnings

import pytest
import torch
from torch import nn

from ampwise.observe.events import EventBus, StepOutcome
from ampwise.runner.inject import inject
from ampwise.runner.spec import Lists
from ampwise.runtime.hardware.device import Choice
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

FP16 = Choice(precision="fp16", reason="asked for", slow_factor=None, device="cpu")
HUGE = DynamicLossScale(scale=2.0**40)


def stock_fp16(**options):
    return inject(choice=FP16, lists=Lists.STOCK, bus=EventBus(), **options)


def problem(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(4, 8, 8)
    return net, x, x[..., :4].sin()


def parameters(net):
    return [p.detach().clone() for p in net.parameters()]


def loss_of(net, x, y):
    return nn.functional.mse_loss(net(x).float(), y)


def train(optimizer, *, num_steps=4, accumulation=2, clip=None, by_hand=False, init_scale=65536.0):
    net, xs, ys = problem()
    opt = optimizer(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale) if by_hand else None
    losses = []
    for step in range(num_steps):
        opt.zero_grad()
        for micro in range(accumulation):
            x, y = xs[(step + micro) % 4], ys[(step + micro) % 4]
            if scaler is None:
                loss = loss_of(net, x, y) / accumulation
                loss.backward()
            else:
                with torch.autocast("cpu", torch.float16):
                    loss = loss_of(net, x, y) / accumulation
                scaler.scale(loss).backward()
            losses.append(loss.item())
        if scaler is not None:
            scaler.unscale_(opt)
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        if scaler is None:
            opt.step()
        else:
            scaler.step(opt)
            scaler.update()
    return losses, parameters(net), opt


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "adam fused": lambda params: torch.optim.Adam(params, lr=1e-2, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_it_is_the_hand_written_scaler_bit_for_bit(name, clip):
    by_hand = train(OPTIMIZERS[name], clip=clip, by_hand=True)
    with stock_fp16() as injected:
        result = train(OPTIMIZERS[name], clip=clip)
    assert result[0] == by_hand[0]
    assert all(map(torch.equal, result[1], by_hand[1]))
    assert (injected.num_steps, injected.num_skipped, injected.scale) == (4, 0, 65536.0)


def test_overflowing_steps_are_skipped_and_training_goes_on_like_the_hand_written_loop():
    start = 2.0**24
    by_hand = train(OPTIMIZERS["adamw"], num_steps=14, by_hand=True, init_scale=start)
    with stock_fp16(loss_scale=DynamicLossScale(scale=start)) as injected:
        result = train(OPTIMIZERS["adamw"], num_steps=14)
    assert 0 < injected.num_skipped < 14
    assert injected.scale == start / 2**injected.num_skipped
    assert all(map(torch.equal, result[1], by_hand[1]))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_touches_neither_parameters_nor_state(name):
    before = parameters(problem()[0])
    with stock_fp16(loss_scale=HUGE) as injected:
        _, after, opt = train(OPTIMIZERS[name], num_steps=2)
    assert all(map(torch.equal, before, after))
    assert not opt.state
    assert (injected.num_skipped, injected.scale) == (2, 2.0**38)


def test_clipping_by_value_hides_no_overflow():
    net, xs, ys = problem()
    with stock_fp16(loss_scale=HUGE) as injected:
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        before = parameters(net)
        loss_of(net, xs[0], ys[0]).backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.1)
        opt.step()
    assert injected.num_skipped == 1
    assert all(map(torch.equal, before, parameters(net)))


def test_without_an_optimizer_each_backward_is_a_step_and_an_overflow_changes_nothing():
    net, xs, ys = problem()
    outcomes, bus = [], EventBus()
    with inject(choice=FP16, lists=Lists.STOCK, loss_scale=DynamicLossScale(scale=2.0**24), bus=bus) as injected:
        bus.subscribe(StepOutcome, outcomes.append)
        for i in range(12):
            net.zero_grad()
            loss_of(net, xs[i % 4], ys[i % 4]).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p.sub_(0.1 * p.grad)
    assert 0 < injected.num_skipped < 12
    assert injected.num_steps == len(outcomes) == 12
    assert all(p.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_that_overflows_leaves_the_step_out(keyword):
    net, xs, ys = problem()
    with stock_fp16(loss_scale=HUGE) as injected:
        opt = torch.optim.Adam(net.parameters(), lr=0.1)
        before = parameters(net)

        def closure():
            opt.zero_grad()
            loss = loss_of(net, xs[0], ys[0])
            loss.backward()
            return loss

        loss = opt.step(closure=closure) if keyword else opt.step(closure)
    assert loss.item() == pytest.approx(loss_of(net, xs[0], ys[0]).item(), rel=1e-2)
    assert injected.num_skipped == 1
    assert all(map(torch.equal, before, parameters(net)))


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation as published: moves the weights, then asks for the loss there."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in params]).norm() + 1e-12
        moves = [0.05 * p.grad / norm for p in params]
        for p, move in zip(params, moves, strict=True):
            p.add_(move)
        with torch.enable_grad():
            closure()
        for p, move in zip(params, moves, strict=True):
            p.sub_(move)
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])


def test_an_optimizer_that_moves_its_weights_first_is_put_back():
    net, xs, ys = problem()
    with stock_fp16() as injected:
        opt = Sam(net.parameters(), lr=0.1)
        before = parameters(net)
        loss_of(net, xs[0], ys[0]).backward()

        def closure():
            opt.zero_grad()
            loss = loss_of(net, xs[0], ys[0]) * 1e30 * 1e30
            loss.backward()
            return loss

        opt.step(closure)
    assert injected.num_skipped == 1
    assert all(map(torch.equal, before, parameters(net)))


def test_an_optimizer_inside_backward_meets_true_gradients_and_skips_what_overflows():
    results = []
    for scale in (None, DynamicLossScale(scale=2.0**24)):
        net, xs, ys = problem()
        with stock_fp16(loss_scale=scale) as injected:
            optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

            def update(p, optimizers=optimizers):
                optimizers[p].step()
                optimizers[p].zero_grad()

            for p in net.parameters():
                p.register_post_accumulate_grad_hook(update)
            for i in range(6):
                loss_of(net, xs[i % 4], ys[i % 4]).backward()
        results.append((injected.num_skipped, loss_of(net, xs[0], ys[0]).item()))
        assert all(p.isfinite().all() for p in net.parameters())
    assert results[0][0] == 0
    assert results[1][0] > 0
    assert results[0][1] == pytest.approx(results[1][1], rel=0.3)


def true_gradients(look):
    """What ``look`` sees in fp32 and under a hidden scale."""
    seen = []
    for context in (inject(choice=Choice(precision="fp32", reason="", slow_factor=None, device="cpu")), stock_fp16()):
        with context:
            seen.append(look(*problem()))
    return seen


def norm_in_hook(net, xs, ys):
    seen = {}
    net[0].weight.register_hook(lambda g: seen.update(weight=g.norm().item()))
    torch.optim.SGD(net.parameters(), lr=0.1)
    net[0].bias.register_hook(lambda g: seen.update(bias=g.norm().item()))
    loss_of(net, xs[0], ys[0]).backward()
    return seen


def norm_of_non_leaf(net, xs, ys):
    seen = []
    hidden = net[0](xs[0])
    hidden.register_hook(lambda g: seen.append(g.float().norm().item()))
    loss = nn.functional.mse_loss(net[2](net[1](hidden)).float(), ys[0])
    loss.backward()
    return [*seen, net[0].weight.grad.norm().item()]


def doubled_by_hook(net, xs, ys):
    hidden = net[0](xs[0])
    hidden.register_hook(lambda g: g * 2)
    nn.functional.mse_loss(net[2](net[1](hidden)).float(), ys[0]).backward()
    return [net[0].weight.grad.norm().item(), net[2].weight.grad.norm().item()]


def retained(net, xs, ys):
    hidden = net[0](xs[0])
    hidden.retain_grad()
    loss = nn.functional.mse_loss(net[2](net[1](hidden)).float(), ys[0])
    loss.backward(retain_graph=True)
    once = hidden.grad.float().norm().item()
    loss.backward()
    return [once, hidden.grad.float().norm().item()]


def module_hooks(net, xs, ys):
    seen = []
    net[2].register_full_backward_hook(lambda m, gi, go: seen.extend([gi[0].float().norm().item()]))
    net[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    net[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].float().norm().item()))
    loss_of(net, xs[0].requires_grad_(), ys[0]).backward()
    return [*seen, net[0].weight.grad.norm().item(), xs[0].grad is not None]


def global_module_hook(net, xs, ys):
    from torch.nn.modules.module import register_module_full_backward_hook

    seen = []
    handle = register_module_full_backward_hook(lambda m, gi, go: seen.append(go[0].float().norm().item()))
    try:
        loss_of(net, xs[0].requires_grad_(), ys[0]).backward()
    finally:
        handle.remove()
    return seen


def by_hand(net, xs, ys):
    grads = torch.autograd.grad(loss_of(net, xs[0], ys[0]), list(net.parameters()))
    return [g.norm().item() for g in grads]


def by_name(net, xs, ys):
    grads = torch.autograd.grad(loss_of(net, xs[0], ys[0]), dict(net.named_parameters()))
    return [g.norm().item() for g in grads.values()]


def of_non_leaf_by_hand(net, xs, ys):
    hidden = net[0](xs[0])
    loss = nn.functional.mse_loss(net[2](net[1](hidden)).float(), ys[0])
    return [torch.autograd.grad(loss, hidden)[0].float().norm().item()]


def penalty(net, xs, ys):
    x = xs[0].clone().requires_grad_()
    (g,) = torch.autograd.grad(net(x).float().sum(), x, create_graph=True)
    loss = ((g.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    return [loss.item(), net[0].weight.grad.norm().item()]


def checkpointed(use_reentrant):
    def look(net, xs, ys):
        from torch.utils.checkpoint import checkpoint

        torch.optim.SGD(net[0].parameters(), lr=0.1)
        x = xs[0].clone().requires_grad_()
        out = checkpoint(net[0], x, use_reentrant=use_reentrant)
        loss_of(net[1:], out, ys[0]).backward()
        return [x.grad.norm().item(), *(p.grad.norm().item() for p in net.parameters())]

    return look


def only_some_inputs(net, xs, ys):
    hidden = net[0](xs[0])
    loss = nn.functional.mse_loss(net[2](net[1](hidden)).float(), ys[0])
    loss.backward(inputs=[net[2].weight, hidden])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [net[2].weight.grad.norm().item(), hidden.grad.float().norm().item(), net[0].weight.grad is None]


def seeded(net, xs, ys):
    out = net(xs[0])
    out.backward(torch.full_like(out, 0.01))
    return [p.grad.norm().item() for p in net.parameters()]


LOOKS = [
    norm_in_hook, norm_of_non_leaf, doubled_by_hook, retained, module_hooks, global_module_hook, by_hand, by_name,
    of_non_leaf_by_hand, penalty, only_some_inputs, seeded,
]  # fmt: skip


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_the_script_sees_true_gradients(look):
    plain, hidden = true_gradients(look)
    assert hidden == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_pass_true_gradients_on(use_reentrant):
    plain, hidden = true_gradients(checkpointed(use_reentrant))
    assert hidden == pytest.approx(plain, rel=0.02)


def record(module, grad_input, grad_output):
    """A hook that pickles."""


def test_hooks_of_the_script_pickle_without_ampwise_and_leaves_without_a_warning():
    net = problem()[0]
    with stock_fp16():
        torch.optim.SGD(net.parameters(), lr=0.1)
        net[0].register_full_backward_hook(record)
        data = pickle.dumps(net)
    assert b"ampwise.runner" not in data
    assert b"ampwise.interpose" not in data
    pickle.loads(data)


def test_lbfgs_is_not_scaled():
    net, xs, ys = problem()
    with stock_fp16(loss_scale=HUGE) as injected:
        opt = torch.optim.LBFGS(net.parameters(), max_iter=3)

        def closure():
            opt.zero_grad()
            loss = loss_of(net, xs[0], ys[0])
            loss.backward()
            return loss

        first, last = opt.step(closure).item(), opt.step(closure).item()
    assert last < first
    assert injected.num_skipped == 0
    assert any("LBFGS" in note for note in injected.notes)


def test_nothing_stays_on_the_leaves():
    net, xs, ys = problem()
    with stock_fp16():
        torch.optim.SGD(net.parameters(), lr=0.1)
        loss_of(net, xs[0], ys[0]).backward()
    assert all(p._backward_hooks is None for p in net.parameters())


def test_a_script_whose_default_dtype_is_fp64():
    torch.set_default_dtype(torch.float64)
    try:
        net = nn.Linear(2, 1)
        with stock_fp16() as injected:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            net(torch.ones(3, 2)).square().mean().backward()
            optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert (injected.num_steps, injected.num_skipped) == (1, 0)
