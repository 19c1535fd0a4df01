"""A plan's rules in a script that knows nothing of them."""

import pytest
import torch
from torch import nn

from ampwise.plan.plan import Plan, Rule
from ampwise.plan.presets import presets
from ampwise.runner.inject import inject
from ampwise.runner.script import RefusedRun
from ampwise.runner.spec import Lists
from ampwise.runtime.casts.cast_forward import cast_forward_of
from ampwise.runtime.hardware.device import Choice

BF16 = torch.bfloat16


class Layer(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        self.seen = x.dtype, out.dtype, torch.softmax(out.bfloat16(), -1).dtype
        return out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(Layer(4, 4), Layer(4, 4))
        self.wo = Layer(4, 4)

    def forward(self, x):
        return self.wo(self.encode(x))

    def encode(self, x):
        return self.encoder(x)


@pytest.fixture
def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def running(*rules, default="bf16", **options):
    plan = Plan(default=default, rules=tuple(Rule(**rule) for rule in rules), lists=Lists.STOCK, **options)
    choice = Choice(precision=default, reason="asked for", slow_factor=None, device="cpu")
    return inject(choice=choice, lists=Lists.STOCK, plan=plan)


def test_rules_hold_before_the_first_forward_and_go_with_the_run(x):
    model = Model()
    with running({"module": "wo", "compute": "fp32"}) as injected:
        model(x)
        assert model.wo.seen[:2] == (torch.float32, torch.float32)
        assert model.encoder[0].seen[1] is BF16
    assert injected.notes == ["plan: rules[0], fp32 for wo: wo"]
    assert all(cast_forward_of(module) is None for module in model.modules())


def test_a_part_that_is_called_by_itself_goes_by_its_path_in_the_model(x):
    model = Model()
    with running({"module": "encoder.1", "compute": "fp32"}) as injected:
        model.encode(x)
        model(x)
        assert model.encoder[0].seen[1] is BF16
        assert model.encoder[1].seen[1] is torch.float32
    assert injected.notes == ["plan: rules[0], fp32 for encoder.1: encoder.1"]


def test_of_several_models_each_may_be_named(x):
    generator, critic = Model(), Model()
    with running({"module": "critic.wo", "compute": "fp32"}) as injected:
        critic(generator(x))
        assert (generator.wo.seen[1], critic.wo.seen[1]) == (BF16, torch.float32)
    assert len(injected.notes) == 1


def test_a_low_rule_in_an_fp32_run(x):
    model = Model()
    with running({"module": "encoder", "compute": "bf16"}, default="fp32"):
        out = model(x)
        assert model.encoder[1].seen[1] is BF16
        assert model.wo.seen[:2] == (torch.float32, torch.float32)
        out.sum().backward()


def test_a_rule_that_computes_in_fp16_gets_a_loss_scale(x):
    with running({"module": "encoder", "compute": "fp16"}, default="fp32") as injected:
        assert injected.scale == 65536


def test_the_models_output_is_cast_where_the_plan_says(x):
    model = Model()
    with running(default="bf16", output="fp32"):
        assert model(x).dtype is torch.float32


def test_operators_have_rules_of_their_own(x):
    model = Model()
    with running({"op": "softmax", "compute": "fp32"}, {"module": "encoder.0", "compute": "bf16"}) as injected:
        model(x)
        assert [layer.seen[2] for layer in (*model.encoder, model.wo)] == [BF16, torch.float32, torch.float32]
    assert injected.notes[0] == "plan: rules[0], fp32 for softmax: in every module, and outside of them"


def test_a_rule_that_held_for_nothing_is_told_with_the_nearest_name(x):
    with running({"module": "*.w0", "compute": "fp32"}, {"module": "encode.0", "compute": "fp32"}) as injected:
        nn.Sequential(Model())(x)
    assert injected.notes == [
        'plan: rules[0].module: "*.w0" matches no module; did you mean "*.wo"?',
        'plan: rules[1].module: "encode.0" matches no module; did you mean "0.encoder.0"?',
    ]


def test_the_scripts_own_mixed_precision_ends_the_rules(x):
    model = Model()
    with running({"module": "wo", "compute": "fp32"}) as injected:
        model(x)
        with torch.autocast("cpu", BF16):
            model(x)
        assert model.wo.seen[1] is BF16
        assert injected.left_alone is not None
    assert injected.notes[0].startswith("plan: not in effect in a script with its own mixed precision")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_regions_in_compiled_code_are_not_taken_for_the_scripts_own(backend, x):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    rules = {"module": "1", "compute": "fp32"}, {"module": "1.1", "compute": "bf16"}
    with running(*rules) as injected:
        expected = model(x)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        assert torch.equal(compiled(x), expected)
        compiled(x).sum().backward()
    assert injected.left_alone is None


def test_what_cannot_be_done_ends_the_run(x):
    def script():
        try:
            Model()(x)
        except Exception:  # noqa: BLE001 - as a script may
            return

    with running({"module": "wo", "compute": "fp8_e4m3"}), pytest.raises(RefusedRun) as refused:
        script()
    assert "rules[0].compute" in str(refused.value.error)


def test_a_preset_tells_of_the_rules_that_are_for_other_models(x):
    choice = Choice(precision="fp16", reason="asked for", slow_factor=None, device="cpu")
    with inject(choice=choice, lists=Lists.STOCK, plan=presets()["t5"].plan) as injected:
        Model()(x)
    assert injected.notes[-1] == 'plan: no module for "*norm*": a preset has this rule for other models'


def test_an_older_torchs_lists_are_told_of_where_no_rule_is(x):
    with running(torch="1.9") as injected:
        Model()(x)
    assert injected.notes[0].startswith('plan: torch = "1.9": the installed torch is')


def test_rules_that_mean_another_model_are_told_in_one_line(x):
    with running({"module": "*.vae.mid", "compute": "fp32"}, {"module": "unet", "compute": "fp32"}) as injected:
        Model()(x)
    assert injected.notes == [
        'plan: rules on "*.vae.mid", "unet": no module is called so (the model\'s begin with encoder, wo)'
    ]


def test_an_operator_that_is_brought_to_fp32_everywhere_is_so_outside_of_the_modules_too(x):
    model = Model()
    with running({"op": "matmul", "compute": "fp32"}, {"op": "linear", "compute": "fp32"}) as injected:
        outside = model(x) @ torch.ones(4, 4, dtype=BF16)
        assert outside.dtype is torch.float32
        assert injected.notes[0] == "plan: rules[0], fp32 for matmul: in every module, and outside of them"
    assert (x @ torch.ones(4, 4)).dtype is torch.float32
    assert torch.overrides._get_current_function_mode() is None


def test_a_rule_on_modules_behind_it_takes_it_back_in_them(x):
    class Product(nn.Module):
        def forward(self, x):
            return x @ torch.ones(4, 4)

    model = nn.Sequential(Product())
    with running({"op": "matmul", "compute": "fp32"}, {"module": "*", "compute": "bf16"}):
        assert model(x).dtype is BF16
        assert (x @ torch.ones(4, 4)).dtype is torch.float32


def test_what_is_brought_to_a_lower_format_is_so_in_the_modules_alone(x):
    with running({"op": "add", "compute": "bf16"}):
        Model()(x)
        assert (x + x).dtype is torch.float32
