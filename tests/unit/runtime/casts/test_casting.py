"""``apply_plan``: what it does to a model's computation, and that it leaves nothing else on the model."""

import copy
import inspect
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

from ampwise._base.errors import CannotRunError, PlanError, UsageError
from ampwise.plan.plan import Lists, Plan, Rule, Updates
from ampwise.plan.presets import presets
from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
from ampwise.runtime.casts.small_updates import keeper_of

BF16 = torch.bfloat16


class Seen(nn.Module):
    """A linear layer that says in which format it and its softmax ran."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.dtypes = {}

    def forward(self, x, *, scale=None):
        self.dtypes["x"] = x.dtype
        y = self.inner(x)
        self.dtypes["linear"] = y.dtype
        self.dtypes["softmax"] = F.softmax(y.bfloat16(), -1).dtype
        self.dtypes["matmul"] = (y @ y.mT.to(y.dtype)).dtype
        return y if scale is None else y * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Seen(), Seen()])
        self.wo = Seen()

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.wo(x)


class Quiet(nn.Module):
    """As ``Net``, and compiles."""

    def __init__(self):
        super().__init__()
        self.a, self.wo, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return F.softmax(self.out(self.wo(torch.relu(self.a(x)))), -1) @ torch.eye(4)


def net(kind=Net):
    torch.manual_seed(0)
    return kind()


@pytest.fixture
def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def plan(*rules, default="bf16", **options):
    return Plan(default=default, rules=tuple(Rule(**rule) for rule in rules), **{"lists": Lists.STOCK, **options})


def state_of(model):
    return [(name, dict(vars(module))) for name, module in model.named_modules()]


def same_state(one, other):
    return all(
        a == b and c.keys() == d.keys() and all(c[key] is d[key] for key in c)
        for (a, c), (b, d) in zip(one, other, strict=True)
    )


def test_the_default_holds_where_no_rule_does(x):
    model = net()
    undo = apply_plan(model, plan())
    out = model(x)
    undo()
    assert {layer.dtypes["linear"] for layer in model.layers} == {BF16}
    assert out.dtype is torch.float32, "code outside of autocast is given fp32"
    with torch.autocast("cpu", BF16):
        expected = model(x)
    assert torch.equal(out, expected.float())


def test_inside_of_autocast_its_results_are_autocasts(x):
    model = net()
    with plan_in_effect(model, plan()), torch.autocast("cpu", BF16):
        assert model(x).dtype is BF16


def test_a_module_in_fp32_gets_its_inputs_in_fp32_and_is_exact(x):
    model = net()
    with plan_in_effect(model, plan({"module": "layers.1", "compute": "fp32"})):
        model(x)
    assert model.layers[0].dtypes["linear"] is BF16
    assert model.layers[1].dtypes["x"] is torch.float32
    assert model.layers[1].dtypes["linear"] is torch.float32
    assert model.wo.dtypes["linear"] is BF16


def test_a_rule_on_a_list_of_modules_holds_for_each(x):
    model = net()
    with plan_in_effect(model, plan({"module": "layers", "compute": "fp32"})):
        model(x)
    assert [layer.dtypes["linear"] for layer in model.layers] == [torch.float32] * 2


def test_a_low_module_in_an_fp32_model_gives_fp32_back(x):
    model = net()
    with plan_in_effect(model, plan({"module": "layers.0", "compute": "bf16"}, default="fp32")):
        model(x)
    assert model.layers[0].dtypes["linear"] is BF16
    assert model.layers[1].dtypes["x"] is torch.float32


def test_two_low_formats_in_turn_share_no_cast_of_a_weight(x):
    linear = nn.Linear(4, 4)
    model = nn.Sequential(nn.Sequential(linear), nn.Sequential(linear))
    with plan_in_effect(model, plan({"module": "re:1", "compute": "fp16"})):
        assert torch.isfinite(model(x)).all()


def test_output_and_gradient_formats(x):
    model = net(Quiet)
    seen = []
    rule = {"module": "a", "compute": "bf16", "output": "fp32", "grad": "fp8_e5m2"}
    with plan_in_effect(model, plan(rule, default="fp32")):
        model.wo.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
        model(x).square().sum().backward()
    assert seen == [torch.float32]
    rounded = model.a.bias.grad.clone()
    model.zero_grad()
    with plan_in_effect(model, plan({"module": "a", "compute": "bf16", "output": "fp32"}, default="fp32")):
        model(x).square().sum().backward()
    assert not torch.equal(rounded, model.a.bias.grad)
    assert torch.allclose(rounded, model.a.bias.grad, rtol=0.5, atol=1e-4)


def test_nested_arguments_and_results():
    class Nested(nn.Module):
        def forward(self, pair, *, table):
            assert pair[0].dtype is pair[1][0].dtype is table["x"].dtype is torch.float32
            assert pair[1][1] == "text"
            assert table["n"].dtype is torch.int64
            return {"y": pair[0], "rest": (pair[1][0], None)}

    low = torch.ones(2, dtype=BF16)
    wide = torch.ones(2, dtype=torch.float64)
    model = Nested()
    with plan_in_effect(model, Plan(default="fp32", output="bf16")):
        out = model((low, [low, "text"]), table={"x": low, "n": torch.ones(1, dtype=torch.int64), "w": wide})
    assert out["y"].dtype is out["rest"][0].dtype is BF16


def test_what_needs_no_cast_is_handed_on_by_identity(x):
    class Same(nn.Module):
        def forward(self, cache, x):
            cache.append(x)
            return cache

    cache = []
    model = Same()
    with plan_in_effect(model, Plan(default="fp32")):
        assert model(cache, x) is cache
    assert cache == [x]


NOT_TORCHS = {"fp8", "bf16-pure"}
"""Presets that torch alone cannot carry out."""


@pytest.mark.parametrize("name", sorted(presets().keys() - NOT_TORCHS))
@pytest.mark.filterwarnings("ignore:plan. no module for")  # presets name modules that this model lacks
def test_apply_then_undo_leaves_the_model_as_it_was(name, x):
    model = net(Quiet)
    before, signature, keys = state_of(model), inspect.signature(model.forward), [*model.state_dict()]
    plain = model(x)
    undo = apply_plan(model, name)
    assert inspect.signature(model.forward) == signature
    assert [*model.state_dict()] == keys
    assert torch.allclose(model(x), plain, atol=0.05)
    undo()
    undo()
    assert same_state(before, state_of(model))
    assert torch.equal(model(x), plain)


def test_stock_equals_torchs_autocast_bit_for_bit(x):
    def train(apply, region):
        model = net(Quiet)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        undo = apply(model)
        for _ in range(4):
            with region():
                loss = F.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        undo()
        return [p.detach() for p in model.parameters()]

    def autocast():
        return torch.autocast("cpu", BF16)

    with_torch = train(lambda _: lambda: None, autocast)
    with_plan = train(lambda model: apply_plan(model, plan()), autocast)
    assert all(map(torch.equal, with_torch, with_plan))


@pytest.mark.leaves_behind("inductor adds to sys.path")
@pytest.mark.parametrize("rules", [(), ({"module": "wo", "compute": "fp32"}, {"op": "softmax", "compute": "fp32"})])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_equals_eager(rules, backend, x):
    torch._dynamo.reset()
    model = net(Quiet)

    def outcome(call):
        model.zero_grad()
        out = call(x)
        out.square().sum().backward()
        return [out, *(p.grad for p in model.parameters())]

    with plan_in_effect(model, plan(*rules)):
        eager = outcome(model)
        compiled = outcome(torch.compile(model, backend=backend, fullgraph=True))
    # inductor does not round between the operators it fuses
    tolerance = {"rtol": 0.05, "atol": 1e-3} if backend == "inductor" else {"rtol": 0, "atol": 0}
    assert all(torch.allclose(one, other, **tolerance) for one, other in zip(eager, compiled, strict=True))


def test_code_may_be_compiled_in_a_thread_that_never_ran_it(x):
    torch._dynamo.reset()
    model = net(Quiet)
    outs = []
    with plan_in_effect(model, plan({"op": "softmax", "compute": "fp32"})):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for _ in range(2):
            thread = threading.Thread(target=lambda: outs.append(compiled(x)))
            thread.start()
            thread.join()
        assert all(torch.equal(out, model(x)) for out in outs)
    assert len(outs) == 2


def test_a_model_compiled_before_is_compiled_anew(x):
    torch._dynamo.reset()
    model = net(Quiet)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    plain = compiled(x)
    undo = apply_plan(compiled, plan({"module": "wo", "compute": "fp32"}))
    assert torch.equal(compiled(x), model(x))
    assert not torch.equal(compiled(x), plain)
    undo()
    assert torch.equal(compiled(x), plain)


def test_another_format_in_a_region_is_one_more_graph(x):
    torch._dynamo.reset()
    model = net(Quiet)
    with plan_in_effect(model, plan({"module": "wo", "compute": "fp32"})):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch._dynamo.utils.counters.clear()
        first = model.wo.forward.region
        low = type(first)(compute=BF16)
        for region in (first, low) * 3:
            model.wo.forward.region = region
            assert torch.equal(compiled(x), model(x))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_runs_a_forward_again_as_it_ran(use_reentrant, x):
    class Checkpointed(Quiet):
        def forward(self, x):
            hidden = checkpoint(self.block, x, use_reentrant=use_reentrant)
            return F.softmax(hidden, -1)

        def block(self, x):
            return self.out(torch.relu(self.wo(torch.relu(self.a(x)))))

    rules = ({"op": "linear", "compute": "fp32", "module": "wo"}, {"module": "out", "compute": "fp32"})
    x.requires_grad_()
    grads = []
    for kind in (Quiet, Checkpointed):
        model = net(kind)
        if kind is Quiet:
            model.forward = lambda x, m=model: F.softmax(Checkpointed.block(m, x), -1)
        with plan_in_effect(model, plan(*rules)):
            model(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *grads))


def test_a_checkpointed_layer_keeps_the_operators_rules_when_it_runs_again(x):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 4)
            self.dtypes = []

        def forward(self, x):
            y = self.proj(x)
            weights = torch.softmax(y, -1)
            self.dtypes.append(weights.dtype)
            return weights * x

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, x):
            return checkpoint(self.attention, x, use_reentrant=False)

    model = Outer()
    with plan_in_effect(model, plan({"op": "softmax", "compute": "fp32"})):
        model(x.requires_grad_()).sum().backward()
    assert model.attention.dtypes == [torch.float32] * 2


def test_two_threads_with_different_plans_do_not_meet(x):
    models = [net(), net()]
    undos = [apply_plan(models[0], plan()), apply_plan(models[1], plan({"op": "linear", "compute": "fp32"}))]
    turn = threading.Barrier(2)
    seen = [set(), set()]

    def work(index):
        for _ in range(20):
            turn.wait()
            models[index](x)
            seen[index].add(models[index].wo.dtypes["linear"])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for undo in undos:
        undo()
    assert seen == [{BF16}, {torch.float32}]


def test_a_copy_and_a_pickle_carry_the_plan_with_their_own_weights(x):
    model = net(Quiet)
    undo = apply_plan(model, plan({"op": "softmax", "compute": "fp32"}, {"module": "wo", "compute": "fp32"}))
    expected = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), expected)
        with torch.no_grad():
            twin.wo.weight.zero_()
        assert not torch.equal(twin(x), expected)
    undo()
    assert torch.equal(model(x), net(Quiet)(x))


def test_a_replica_computes_with_its_own_weights(x):
    model = nn.Linear(4, 4)
    undo = apply_plan(model, plan())
    replica = model._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(4, 4), torch.zeros(4)
    assert replica(x).abs().sum() == 0
    undo()
    assert torch.equal(replica(x), torch.zeros(3, 4))


def test_a_model_in_ddps_or_a_compilers_wrapper_is_named_as_if_alone(x):
    model = net()
    with plan_in_effect(nn.DataParallel(model), plan({"module": "layers.0", "compute": "fp32"})):
        model(x)
    assert model.layers[0].dtypes["linear"] is torch.float32


def test_a_forward_of_somebody_elses_over_ours_is_left(x):
    model = nn.Linear(4, 4)
    plain = model(x)
    undo = apply_plan(model, plan())
    ours = model.forward
    model.forward = lambda x: ours(x) + 1
    undo()
    assert torch.equal(model(x), plain + 1)


def test_a_forward_of_somebody_elses_under_ours_comes_back(x):
    model = nn.Linear(4, 4)
    theirs = model.forward = lambda x: nn.Linear.forward(model, x) + 1
    with plan_in_effect(model, plan()):
        assert model.forward is not theirs
    assert model.forward is theirs


def test_a_second_plan_is_refused(x):
    model = net()
    undo = apply_plan(model, plan())
    before = state_of(model)
    with pytest.raises(CannotRunError, match="a plan is in effect on this model already"):
        apply_plan(model, plan())
    with pytest.raises(CannotRunError, match='at "0"'):
        apply_plan(nn.Sequential(model), plan())
    assert same_state(before, state_of(model))
    undo()


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([{"module": "layer.*", "compute": "fp32"}], r'rules\[0\].module: "layer.\*" matches no module; .* "layers'),
        ([{"op": "mylib::none", "compute": "fp32"}], "is no operator registered with torch"),
    ],
)
def test_a_rule_without_effect_warns(rules, text):
    model = net()
    with pytest.warns(UserWarning, match=text):
        apply_plan(model, plan(*rules))()


def test_rules_of_a_preset_for_other_models_are_told_of_at_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        apply_plan(net(), "fp16-safe")()
        assert not told  # the rule on wo holds: the others are for other models
        apply_plan(net(), "moe")()
    assert [str(one.message) for one in told] == [
        'plan: no module for "*.router", "*.gate": a preset has these rules for other models'
    ]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (plan({"module": "wo", "compute": "fp8_e4m3"}), CannotRunError, r"rules\[0\].compute: .* --emulate fp8"),
        (plan({"op": "linear", "compute": "fp8_e4m3"}), CannotRunError, r"rules\[0\].compute: .* --emulate fp8"),
        (plan({"module": "wo", "compute": "tf32"}), CannotRunError, "tf32 is a switch of the whole process"),
        (plan(default="fp64"), CannotRunError, "default: torch's autocast cannot compute in fp64"),
        ("fp61", PlanError, "neither a plan file nor a preset"),
    ],
)
def test_what_cannot_be_done_is_refused_and_the_model_left(given, error, text):
    model = net()
    before = state_of(model)
    with pytest.raises(error, match=text):
        apply_plan(model, given)
    assert same_state(before, state_of(model))


def test_low_parameters_in_fp32_are_refused_with_the_place():
    model = net()
    model.wo.bfloat16()
    with pytest.raises(CannotRunError, match=r'"wo\.inner" is to compute in fp32, but its weight is bfloat16'):
        apply_plan(model, plan({"module": "wo", "compute": "fp32"}))
    apply_plan(model, plan())()


def test_parameters_in_a_low_format_are_those_of_the_model(x):
    kept = plan(parameters="bf16")
    with pytest.raises(CannotRunError, match=r'"layers.0.inner.weight" is float32; cast the model, before .*bfloat16'):
        apply_plan(net(), kept)
    model = net().bfloat16()
    with plan_in_effect(model, kept):
        assert torch.isfinite(model(x)).all()


def test_updates_are_kept_by_the_optimizer_that_is_named(x):
    model = net().bfloat16()
    with pytest.raises(CannotRunError, match='updates = "stochastic" is for the optimizer to do; name it too'):
        apply_plan(model, "bf16-pure")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    undo = apply_plan(model, "bf16-pure", optimizers=optimizer)
    assert keeper_of(optimizer) is not None
    undo()
    assert keeper_of(optimizer) is None
    broken = plan({"module": "wo", "compute": "fp8"}, parameters="bf16", updates=Updates.MASTER)
    with pytest.raises(CannotRunError):
        apply_plan(model, broken, optimizers=[optimizer])
    assert keeper_of(optimizer) is None


def test_a_scripted_module_is_refused_where_a_rule_names_it(x):
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4))))
    with pytest.raises(CannotRunError, match='"1" is compiled by TorchScript'):
        apply_plan(model, plan({"module": "1", "compute": "fp32"}))
    with plan_in_effect(model, plan({"op": "softmax", "compute": "fp32"})):
        assert model(x).dtype is torch.float32


def test_a_shared_module_has_one_format():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    with pytest.raises(PlanError, match=r'"0.0" and "1.0" are one module, under different rules: fp32 by rules\[0\]'):
        apply_plan(model, plan({"module": "0.0", "compute": "fp32"}, {"module": "1.0", "compute": "fp16"}))


def test_one_rule_on_a_shared_module_holds_wherever_it_is_called(x):
    shared = Seen()
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    with plan_in_effect(model, plan({"module": "0.0", "compute": "fp32"})):
        model(x)
    assert shared.dtypes["linear"] is torch.float32


class Autoencoder(nn.Module):
    """Its methods are called in its place, as those of diffusers' are."""

    def __init__(self, shared=None):
        super().__init__()
        self.encoder, self.decoder, self.shared = Seen(), Seen(), shared

    def encode(self, x):
        return self.encoder(x)

    def forward(self, x):
        return self.decoder(self.encode(x))


class Latent(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = Seen()
        self.vae, self.unet = Autoencoder(self.shared), Seen()

    def forward(self, x):
        return self.unet(self.vae.encode(x)) + self.shared(x)


def test_a_rule_holds_where_a_modules_method_is_called_in_its_place(x):
    model = net(Latent)
    before = state_of(model)
    undo = apply_plan(model, plan({"module": "*.vae", "compute": "fp32"}))
    model(x)
    assert model.vae.encoder.dtypes["linear"] is torch.float32
    assert model.unet.dtypes["linear"] is model.shared.dtypes["linear"] is BF16
    undo()
    assert same_state(before, state_of(model))


def test_the_default_holds_where_a_models_method_is_called_in_its_place(x):
    model = net(Autoencoder)
    with plan_in_effect(model, plan()):
        assert model.encode(x).dtype is torch.float32
        assert model.encoder.dtypes["linear"] is BF16
        out = model(x)
    with torch.autocast("cpu", BF16):
        assert torch.equal(model(x).float(), out)


def test_cuda_lists_are_shared_and_go_with_the_last_plan(x):
    models = [net(), net()]
    cuda = Plan(default="bf16")
    undos = [apply_plan(model, cuda) for model in models]
    models[0](x)
    assert models[0].wo.dtypes["softmax"] is torch.float32
    undos[0]()
    models[1](x)
    assert models[1].wo.dtypes["softmax"] is torch.float32
    with pytest.raises(CannotRunError, match="asks for torch's own cast lists"):
        apply_plan(models[0], plan())
    undos[1]()
    with plan_in_effect(models[0], plan()):
        models[0](x)
    assert models[0].wo.dtypes["softmax"] is BF16


def test_a_rule_on_what_attention_reads_itself_warns():
    model = nn.Sequential(nn.MultiheadAttention(4, 2))
    with pytest.warns(UserWarning, match=r"rules\[0\]: \*\.out_proj has no effect: nn.MultiheadAttention reads"):
        apply_plan(model, plan({"module": "*.out_proj", "compute": "fp32"}))()
    apply_plan(model, plan({"module": "0", "compute": "fp32"}))()


def test_a_plan_of_another_torch_warns():
    with pytest.warns(UserWarning, match=r'plan: torch = "2.1": the installed torch is'):
        apply_plan(net(), plan(torch="2.1"))()


def test_what_is_no_model_is_refused():
    with pytest.raises(UsageError, match="give the model"):
        apply_plan("model.pt", "bf16")
