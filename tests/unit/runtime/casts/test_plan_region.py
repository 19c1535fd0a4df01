"""``autocast(plan=)``: what holds within, and that nothing is left of it outside."""

import copy
import gc
import pickle
import threading
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.interpose.own_amp import switch_off_own_amp
from ampwise.plan.plan import Lists, Plan, Rule
from ampwise.runtime.casts.autocast import autocast
from ampwise.runtime.casts.cast_forward import cast_forward_of
from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
from ampwise.runtime.casts.region_rules import _MOST_KEPT, rules_for

BF16, FP32 = torch.bfloat16, torch.float32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.wo, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(F.softmax(self.wo(torch.relu(self.a(x))), -1))


class Checkpointed(Net):
    use_reentrant = False

    def forward(self, x):
        return self.out(checkpoint(self.block, x, use_reentrant=self.use_reentrant))

    def block(self, x):
        return F.softmax(self.wo(torch.relu(self.a(x))), -1)


def net(kind=Net):
    torch.manual_seed(0)
    return kind()


@pytest.fixture
def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def plan(*rules, default="bf16", **options):
    return Plan(default=default, rules=tuple(Rule(**rule) for rule in rules), **{"lists": Lists.STOCK, **options})


WO = {"module": "wo", "compute": "fp32"}
SOFTMAX = {"op": "softmax", "compute": "fp32"}
BOTH = plan(WO, SOFTMAX)


def state_of(model):
    return [dict(vars(module)) for module in model.modules()]


def same_state(one, other):
    return all(a.keys() == b.keys() and all(a[key] is b[key] for key in a) for a, b in zip(one, other, strict=True))


def outcome(model, call, x):
    model.zero_grad()
    result = call(x)
    result.float().square().sum().backward()
    return [result, *(p.grad for p in model.parameters())]


def test_within_it_the_model_computes_by_the_plan_and_outside_as_before(x):
    model = net()
    before, plain = state_of(model), model(x)
    with plan_in_effect(model, BOTH), torch.autocast("cpu", BF16):
        expected = model(x)
    region = autocast("cpu", plan=BOTH, model=model)
    for _ in range(3):
        with region:
            assert torch.equal(model(x), expected)
        assert same_state(before, state_of(model))
        assert torch.equal(model(x), plain)


def test_rules_on_operators_hold_for_the_loss_too(x):
    low = x.bfloat16()
    with autocast("cpu", plan=plan(SOFTMAX)):
        assert F.softmax(low, -1).dtype is FP32
        assert (x @ x.T).dtype is BF16
    assert F.softmax(low, -1).dtype is BF16
    with autocast("cpu", plan=BOTH, model=net()):
        assert F.softmax(low, -1).dtype is FP32


def test_a_later_rule_on_a_module_shields_it_from_the_regions_operators(x):
    seen = []
    model = nn.Sequential(nn.Softmax(-1))
    model[0].register_forward_hook(lambda *given: seen.append(given[-1].dtype))
    low = x.bfloat16()
    with autocast("cpu", plan=plan(SOFTMAX, {"module": "*", "compute": "bf16"}), model=model):
        model(low)
        assert F.softmax(low, -1).dtype is FP32
    assert seen == [BF16]


def test_fp32_and_tf32_switch_autocast_off(x):
    before = torch.backends.cuda.matmul.fp32_precision
    with torch.autocast("cpu", BF16):
        with autocast("cpu", plan="fp32"):
            assert (x @ x.T).dtype is FP32
        with autocast("cpu", plan="tf32"):
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert (x @ x.T).dtype is BF16
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_switched_off_it_is_autocast_switched_off(x):
    model = net()
    with torch.autocast("cpu", BF16), autocast("cpu", plan=BOTH, model=model, enabled=False):
        assert not torch.is_autocast_enabled("cpu")
        assert cast_forward_of(model.wo) is None


def test_where_torch_has_no_such_device_it_does_what_torchs_does(x):
    if torch.cuda.is_available():
        pytest.skip("it has")
    model = net()
    with pytest.warns(UserWarning, match="CUDA is not available"):
        region = autocast("cuda", plan=BOTH, model=model)
    with region:
        assert cast_forward_of(model.wo) is None


@pytest.mark.parametrize("cache_enabled", [None, True, False])
def test_the_cast_cache_is_as_it_is_asked_for_and_goes_with_the_region(cache_enabled, x):
    weight = nn.Parameter(torch.ones(4, 4))
    region = autocast("cpu", plan=plan(), cache_enabled=cache_enabled)
    with region:
        assert F.linear(x, weight).any()
        with torch.no_grad():
            weight.zero_()
        assert bool(F.linear(x, weight).any()) == (cache_enabled is not False), "a cached cast is of the old weight"
    with region:
        assert not F.linear(x, weight).any()


def test_it_decorates(x):
    model = net()

    @autocast("cpu", plan=BOTH, model=model)
    def loss(x, *, power):
        """What is to be small."""
        assert cast_forward_of(model.wo) is not None
        return model(x).pow(power)

    assert loss(x, power=2).dtype is BF16
    assert loss.__doc__ == "What is to be small."
    assert cast_forward_of(model.wo) is None


def test_an_exception_takes_all_of_it_back(x):
    model = net()
    before = state_of(model)
    region = autocast("cpu", plan=BOTH, model=model)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), region:
            1 / 0  # noqa: B018 - for its error
        assert same_state(before, state_of(model))
        assert not torch.is_autocast_enabled("cpu")


def test_within_itself_and_within_others(x):
    model = net()
    before = state_of(model)
    region = autocast("cpu", plan=BOTH, model=model)
    with region:
        expected = model(x)
        with region, autocast("cpu", plan=BOTH, model=model):
            assert torch.equal(model(x), expected)
        assert torch.equal(model(x), expected), "leaving an inner one leaves the outer's in force"
        with autocast("cpu", plan=plan({"op": "softmax", "compute": "bf16"})):
            assert F.softmax(x, -1).dtype is BF16
            assert torch.equal(model(x), expected)
        assert F.softmax(x, -1).dtype is FP32
    assert same_state(before, state_of(model))


@pytest.mark.parametrize("made", ["once", "anew"])
@pytest.mark.parametrize("rules", [(), (WO,), (SOFTMAX,), (WO, SOFTMAX)])
def test_a_compiled_model_is_compiled_once_for_all_steps(made, rules, x):
    torch._dynamo.reset()
    model, graphs = net(), []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    region = autocast("cpu", plan=plan(*rules), model=model)
    for _ in range(5):
        with region if made == "once" else autocast("cpu", plan=plan(*rules), model=model):
            assert all(map(torch.equal, outcome(model, compiled, x), outcome(model, model, x)))
    assert len(graphs) == 1
    for _ in range(2):
        assert torch.equal(compiled(x), model(x))
    assert len(graphs) == 2, "one within, one without"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_runs_again_by_the_plan_when_the_region_was_left(use_reentrant, x):
    plain, model = net(), net(Checkpointed)
    model.use_reentrant = use_reentrant
    x.requires_grad_()
    grads = []
    for one in (plain, model):
        with autocast("cpu", plan=BOTH, model=one):
            out = one(x)
        assert cast_forward_of(one.wo) is None
        out.float().square().sum().backward()
        assert cast_forward_of(one.wo) is None
        grads.append([p.grad for p in one.parameters()])
    assert all(map(torch.equal, *grads))


def test_a_checkpoint_of_no_module_runs_again_by_the_rules_on_operators(x):
    seen = []

    def block(x):
        out = F.softmax(x, -1)
        seen.append(out.dtype)
        return out.exp()

    low = x.bfloat16().requires_grad_()
    with autocast("cpu", plan=plan(SOFTMAX)):
        out = checkpoint(partial(checkpoint, use_reentrant=False), block, low, use_reentrant=False)
    out.sum().backward()
    assert seen[0] is FP32
    assert set(seen) == {FP32}
    assert len(seen) > 1


def test_threads_share_what_is_on_the_model_and_nothing_else(x):
    model, turn, seen = net(), threading.Barrier(2, timeout=60), []

    def work():
        turn.wait()
        seen.append((torch.is_autocast_enabled("cpu"), F.softmax(x.bfloat16(), -1).dtype))
        with autocast("cpu", plan=BOTH, model=model):
            turn.wait()
            seen.append(model(x))
            turn.wait()
        turn.wait()

    before = state_of(model)
    thread = threading.Thread(target=work)
    thread.start()
    with autocast("cpu", plan=BOTH, model=model):
        turn.wait()
        turn.wait()
        expected = model(x)
        turn.wait()
    assert cast_forward_of(model.wo) is None or thread.is_alive()
    turn.wait()
    thread.join()
    assert seen[0] == (False, BF16)
    assert torch.equal(seen[1], expected)
    assert same_state(before, state_of(model))


def test_another_plan_on_the_model_is_refused_and_changes_nothing(x):
    model = net()
    region, other = autocast("cpu", plan=BOTH, model=model), autocast("cpu", plan=plan(WO), model=model)
    with region:
        pass
    with other:
        before = state_of(model)
        for refused in (region, autocast("cpu", plan=plan(), model=nn.Sequential(model))):
            with pytest.raises(CannotRunError, match=r"leave .*region"), refused:
                pass
        with pytest.raises(CannotRunError, match=r"a plan is in effect on this model already \(at \"wo\"\)"):
            apply_plan(model, plan())
        assert same_state(before, state_of(model))
    undo = apply_plan(model, plan())
    with pytest.raises(CannotRunError, match="call the undo that apply_plan returned"), region:
        pass
    assert not torch.is_autocast_enabled("cpu")
    undo()
    with region:
        assert cast_forward_of(model.wo) is not None


def test_a_model_that_was_changed_is_looked_at_anew(x):
    model = net()
    region = autocast("cpu", plan=BOTH, model=model)
    with region:
        old = cast_forward_of(model.wo)
    model.wo = nn.Sequential(nn.Linear(8, 8))
    with region:
        assert cast_forward_of(model.wo) is not old
        assert model.wo[0](x.new_ones(1, 8).bfloat16()).dtype is FP32


def test_a_forward_that_somebody_puts_over_ours_stays_and_computes_as_before(x):
    model = net()
    plain = model(x)
    region = autocast("cpu", plan=plan({"module": "wo", "compute": "bf16"}, default="fp32"), model=model)
    with region:
        expected = model(x)
        model.wo.forward = theirs = partial(lambda ours, x: ours(x), model.wo.forward)
    assert model.wo.forward is theirs
    assert torch.equal(model(x), plain)
    for _ in range(2):
        with region:
            assert torch.equal(model(x), expected)
        assert model.wo.forward is theirs


def test_a_copy_made_within_has_no_plan(x):
    model = net()
    plain = model(x)
    with autocast("cpu", plan=BOTH, model=model):
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for one in copies:
        assert not any(cast_forward_of(module) for module in one.modules())
        assert torch.equal(one(x), plain)
        with torch.no_grad():
            one.wo.weight.zero_()
        assert not torch.equal(one(x), plain), "it computes with its own weights"
        with autocast("cpu", plan=BOTH, model=one):
            assert one(x).dtype is BF16


def test_a_replica_within_computes_with_its_own_weights(x):
    model = nn.Linear(4, 4)
    with autocast("cpu", plan=plan({"module": "*", "compute": "fp32"}), model=model):
        replica = model._replicate_for_data_parallel()
        replica.weight, replica.bias = torch.zeros(4, 4), torch.zeros(4)
        assert replica(x).abs().sum() == 0


def test_the_region_may_be_copied_with_its_model(x):
    holder = {"model": net(), "region": None}
    holder["region"] = autocast("cpu", plan=BOTH, model=holder["model"])
    twin = copy.deepcopy(holder)
    with twin["region"]:
        assert cast_forward_of(twin["model"].wo) is not None
        assert cast_forward_of(holder["model"].wo) is None


@pytest.mark.parametrize("lists", list(Lists))
def test_it_keeps_no_model_alive(lists, x):
    model = net()
    with autocast("cpu", plan=plan(WO, SOFTMAX, lists=lists), model=model):
        model(x)
    gone = weakref.ref(model.wo)
    del model
    gc.collect()
    assert gone() is None


def test_cudas_lists_stay_from_step_to_step_and_go_with_the_model(x):
    torch._dynamo.reset()
    model, graphs, low = net(), [], x.bfloat16()

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    cuda = plan(WO, lists=Lists.CUDA)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        with autocast("cpu", plan=cuda, model=model):
            assert torch.equal(compiled(x), model(x))
            assert torch.softmax(low, -1).dtype is FP32
    assert len(graphs) == 1
    del model, compiled
    gc.collect()
    with torch.autocast("cpu", BF16):
        assert torch.softmax(low, -1).dtype is BF16


def test_cudas_lists_go_with_a_region_of_no_model(x):
    region = autocast("cpu", plan="bf16")
    with region:
        assert torch.softmax(x.bfloat16(), -1).dtype is FP32
    del region
    with torch.autocast("cpu", BF16):
        assert torch.softmax(x.bfloat16(), -1).dtype is BF16


def test_lists_may_be_let_go_in_the_middle_of_a_compilation(x):
    held, others = [autocast("cpu", plan="bf16")], threading.enumerate()
    with held[0]:
        pass

    def backend(graph, _):
        held.clear()
        return graph.forward

    assert torch.compile(nn.Linear(4, 4), backend=backend, fullgraph=True)(x).shape == (3, 4)
    gc.collect()  # what compiled may hold the region in a cycle
    for thread in set(threading.enumerate()).difference(others):
        thread.join(60)
    with torch.autocast("cpu", BF16):
        assert torch.softmax(x.bfloat16(), -1).dtype is BF16


@pytest.mark.parametrize(
    ("given", "model", "error", "text"),
    [
        (plan(WO), None, UsageError, r"rules\[0\] is about modules \(wo\): say of which model"),
        (plan(output="fp32"), None, UsageError, 'output = "fp32" is about what a model gives'),
        (plan(grad="bf16"), None, UsageError, 'grad = "bf16" is about the gradients in a model'),
        (plan(default="fp64"), None, CannotRunError, "default: torch's autocast cannot compute in fp64"),
        ("fp8", None, CannotRunError, "is for linear layers on a GPU"),
        ("fp8", net(), CannotRunError, "is for linear layers on a GPU"),
        ("bf16-pure", net().bfloat16(), CannotRunError, 'updates = "stochastic" is for the optimizer to do'),
        (plan(parameters="bf16"), net(), CannotRunError, 'parameters = "bf16": "a.weight" is float32'),
        (plan(), net().to("meta"), None, ""),
    ],
)
def test_what_no_region_can_do_is_refused_on_entering(given, model, error, text, x):
    region = autocast("cpu", plan=given, model=model)
    if error is None:
        with region:
            return
    for _ in range(2):
        with pytest.raises(error, match=text), region:
            pass
        assert not torch.is_autocast_enabled("cpu")


def test_a_model_elsewhere_is_refused():
    region = autocast("mtia" if False else "xpu", plan=plan(default="fp32"), model=net())
    with pytest.raises(
        UsageError, match=r'autocast\("xpu", plan=...\) was given a model on cpu; write autocast\("cpu"'
    ):
        region.__enter__()


def test_rules_without_effect_warn_once():
    region = autocast("cpu", plan=plan({"module": "w0", "compute": "fp32"}), model=net())
    with pytest.warns(UserWarning, match=r'plan: rules on "w0": no module is called so') as caught, region:
        pass
    assert caught[0].filename == __file__
    with region:
        pass


@pytest.mark.parametrize("rules", [[], [{"module": "wo", "compute": "bf16"}], [{"op": "linear", "compute": "bf16"}]])
def test_no_region_takes_effect_where_no_autocast_may(x, rules):
    model = net()
    expected, low = model(x), plan(*rules, default="fp32" if rules else "bf16")
    off = switch_off_own_amp(autocast=True)
    try:
        with autocast("cpu", plan=low, model=model):
            assert torch.equal(model(x), expected)
    finally:
        off()
    with autocast("cpu", plan=low, model=model):
        assert not torch.equal(model(x), expected)


def test_of_many_plans_the_one_in_use_stays_known():
    model = net()
    many = [plan({"op": "softmax", "compute": "fp32", "because": str(one)}) for one in range(2 * _MOST_KEPT)]
    first = rules_for(many[0], device_type="cpu", model=model)
    for one in many[1:]:
        assert rules_for(many[0], device_type="cpu", model=model) is first
        rules_for(one, device_type="cpu", model=model)
    assert rules_for(many[0], device_type="cpu", model=model) is first
    forgotten = rules_for(many[-1], device_type="cpu", model=model)
    for one in many[:_MOST_KEPT]:
        rules_for(one, device_type="cpu", model=model)
    assert rules_for(many[-1], device_type="cpu", model=model) is not forgotten
