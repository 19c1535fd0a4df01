# ruff: noqa: ARG004 - autograd.Function fixes its arguments
"""A script's own mixed precision is left to it, whichever way it goes about it, and only if it really does."""

import contextlib
import importlib.util
import sys
import warnings

import pytest
import torch
from torch import nn

from ampwise.observe.events import BUS, EventBus
from ampwise.plan.plan import Plan, Rule
from ampwise.runner.inject import inject
from ampwise.runner.spec import Lists
from ampwise.runtime.casts.autocast import autocast
from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
from ampwise.runtime.hardware.device import Choice
from ampwise.runtime.step.step import TrainStep


def injecting(precision="bf16", *, bus=None):
    choice = Choice(precision=precision, reason="asked for", slow_factor=None, device="cpu")
    return inject(choice=choice, lists=Lists.STOCK, bus=bus or EventBus())


def with_region():
    with torch.autocast("cpu", torch.bfloat16):
        pass


def with_old_region():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.cpu.amp.autocast():
            pass


def with_exit_stack():
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", torch.bfloat16))


class Decorated(nn.Module):
    @torch.autocast("cpu", torch.bfloat16)
    def forward(self, x):
        return x


def with_decorated_forward():
    Decorated()(torch.ones(1))


def with_region_in_compiled_code():
    @torch.compile(backend="eager")
    def region(x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    weight = nn.Parameter(torch.ones(2, 2))
    opt = torch.optim.SGD([weight], lr=0.1)
    region(weight).float().sum().backward()
    opt.step()
    torch._dynamo.reset()


def with_scaler():
    torch.amp.GradScaler("cpu")


def with_half_parameters():
    torch.optim.SGD(nn.Linear(2, 2).half().parameters(), lr=0.1)


FOUND = [
    with_region, with_old_region, with_exit_stack, with_decorated_forward, with_region_in_compiled_code, with_scaler,
    with_half_parameters,
]  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("script", FOUND, ids=lambda script: script.__name__)
def test_it_is_found_and_placed(script, precision):
    with injecting(precision) as injected:
        script()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_cache_enabled()
        assert injected.scale is None
    assert "test_own_amp.py:" in injected.left_alone


def without_gpu():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", torch.float16):
            pass
    return scaler


def with_disabled_scaler():
    torch.amp.GradScaler("cpu", enabled=False)


def with_region_off():
    with torch.autocast("cpu", enabled=False):
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype is torch.float32


def with_checkpoint():
    from torch.utils.checkpoint import checkpoint

    for use_reentrant in (True, False):
        net = nn.Linear(2, 2)
        checkpoint(net, torch.ones(1, 2, requires_grad=True), use_reentrant=use_reentrant).float().sum().backward()


class Written(torch.autograd.Function):
    """A Function that knows autocast, as its documentation says."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        return g * 2


def with_custom_function():
    Written.apply(torch.ones(2, requires_grad=True)).sum().backward()


NOT_FOUND = [with_disabled_scaler, with_region_off, with_checkpoint, with_custom_function]
if not torch.cuda.is_available():
    NOT_FOUND.append(without_gpu)


@pytest.mark.parametrize("script", NOT_FOUND, ids=lambda script: script.__name__)
def test_what_is_none_is_not_found(script):
    with injecting() as injected:
        script()
        assert torch.is_autocast_enabled("cpu")
    assert injected.left_alone is None


def test_the_loop_is_still_watched_and_its_numbers_are_its_own():
    def train():
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        losses = []
        for _ in range(3):
            with torch.autocast("cpu", torch.float16):
                loss = net(torch.randn(8, 4)).float().pow(2).mean()
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
        return losses

    plain = train()
    with injecting("fp16") as injected:
        assert train() == plain
    assert injected.num_steps == 3
    assert injected.left_alone.startswith("GradScaler made at ")


def test_found_in_the_middle_of_a_model_and_after_training_began():
    class Late(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return x @ x

    with injecting("fp16") as injected:
        net = nn.Linear(4, 4)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(2, 4)).float().mean().backward()
        opt.step()
        assert net.weight._backward_hooks
        assert Late()(torch.ones(2, 2)).dtype is torch.bfloat16
        assert net(torch.ones(2, 4)).dtype is torch.float32
        assert net.weight._backward_hooks is None
    assert injected.num_steps == 1
    assert injected.left_alone is not None


def test_a_library_is_named_with_the_users_line_that_led_to_it(tmp_path, monkeypatch):
    import sysconfig

    package = tmp_path / "site"
    package.mkdir()
    (package / "trainerlib.py").write_text(
        "import torch\ndef fit():\n    with torch.autocast('cpu', torch.bfloat16):\n        pass\n"
    )
    monkeypatch.setattr("ampwise.interpose.caller._LIBRARIES", (f"{package}/", sysconfig.get_paths()["stdlib"]))
    spec = importlib.util.spec_from_file_location("trainerlib", package / "trainerlib.py")
    trainerlib = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "trainerlib", trainerlib)
    spec.loader.exec_module(trainerlib)
    with injecting() as injected:
        trainerlib.fit()
    assert injected.left_alone.startswith("torch.autocast entered by trainerlib, from ")
    assert "test_own_amp.py:" in injected.left_alone


@pytest.mark.parametrize("injected_precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("own", ["fp32", "bf16", "fp16"])
def test_a_train_step_governs_its_loop_and_its_steps_are_counted(own, injected_precision):
    def train():
        torch.manual_seed(0)
        net = nn.Linear(4, 4)
        step = TrainStep(torch.optim.SGD(net.parameters(), lr=0.1), modules=[net], precision=own)
        for factor in (1.0, float("inf"), 1.0) if own == "fp16" else (1.0, 1.0, 1.0):
            with step.autocast():
                loss = net(torch.ones(2, 4)).float().square().mean() * factor
            step(loss)
        return net.weight.detach().clone()

    alone = train()
    with injecting(injected_precision, bus=BUS) as injected:
        weight = train()
    assert torch.equal(weight, alone)
    assert injected.left_alone.startswith(f"ampwise.TrainStep ({own}) made at ")
    assert "test_own_amp.py:" in injected.left_alone
    assert (injected.num_steps, injected.num_skipped) == (3, 1 if own == "fp16" else 0)


@pytest.mark.parametrize("stay", [True, False])
def test_a_plans_rules_stay_where_a_fault_is_looked_for(stay):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    plan = Plan(default="bf16", rules=(Rule(module="0", compute="fp32", because="under suspicion"),))
    seen = []
    model[0].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    choice = Choice(precision="bf16", reason="asked for", slow_factor=None, device="cpu")
    with inject(choice=choice, plan=plan, rules_stay=stay) as injected, torch.autocast("cpu", dtype=torch.float16):
        model(torch.ones(2, 4))
    assert injected.left_alone is not None
    assert seen == [torch.float32 if stay else torch.float16]


LOW = Plan(default="fp32", rules=(Rule(module="0", compute="fp16"),), lists=Lists.STOCK)


@pytest.fixture
def plans(request):
    """Puts ``LOW`` on a model as a script may, and gives what the model is called in."""
    with contextlib.ExitStack() as undone:

        def apply(model):
            undone.callback(apply_plan(model, LOW))
            return contextlib.nullcontext()

        yield {
            "apply": apply,
            "region": lambda model: autocast("cpu", plan=LOW, model=model),
            "in effect": lambda model: plan_in_effect(model, LOW),
        }[request.param]


@pytest.mark.parametrize("plans", ["apply", "region", "in effect"], indirect=True)
def test_a_plan_that_the_script_puts_on_is_its_own_mixed_precision(plans):
    model, seen = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), []
    model[1].register_forward_hook(lambda _, __, output: seen.append((output.dtype, torch.is_autocast_enabled("cpu"))))
    rules = Plan(default="bf16", rules=(Rule(module="0", compute="fp32"),))
    choice = Choice(precision="bf16", reason="asked for", slow_factor=None, device="cpu")
    with inject(choice=choice, plan=rules, bus=BUS) as injected:
        model(torch.ones(2, 4))
        with plans(model):
            model(torch.ones(2, 4))
        assert not torch.is_autocast_enabled("cpu")
    assert seen == [(torch.bfloat16, True), (torch.float32, False)]
    assert " (fp32, 1 rule) made at " in injected.left_alone


class Noting(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        self.seen = out.dtype
        return out


@pytest.mark.parametrize("is_called_before", [True, False])
@pytest.mark.parametrize("plans", ["apply", "region"], indirect=True)
def test_a_rule_on_a_suspect_holds_in_a_script_with_a_plan_of_its_own(plans, is_called_before):
    model, x = torch.nn.Sequential(Noting(4, 4), torch.nn.Linear(4, 1)), torch.ones(2, 4)
    with plan_in_effect(model, LOW):
        model(x)
    assert model[0].seen is torch.float16
    rules = Plan(default="fp16", rules=(Rule(module="0", compute="fp32", because="under suspicion"),))
    choice = Choice(precision="fp32", reason="asked for", slow_factor=None, device="cpu")
    with inject(choice=choice, lists=Lists.STOCK, plan=rules, rules_stay=True, bus=BUS):
        if is_called_before:
            model(x)
        own = plans(model)
        for _ in range(2):
            with own:
                model(x)
            assert model[0].seen is torch.float32


def test_an_own_region_in_inference_mode_leaves_no_autocast_on_behind_it():
    model = torch.nn.Linear(4, 4)
    with injecting() as injected:
        assert model(torch.ones(2, 4)).dtype is torch.bfloat16
        with torch.inference_mode(), torch.autocast("cpu", torch.float16):
            assert model(torch.ones(2, 4)).dtype is torch.float16
        assert model(torch.ones(2, 4)).dtype is torch.float32
        assert not torch.is_autocast_enabled("cpu")
    assert injected.left_alone.startswith("torch.autocast entered at ")
