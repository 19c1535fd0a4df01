"""Plans that a model cannot bear are refused, and rules without effect are told of."""

import warnings

import pytest
import torch
from torch import nn

from ampwise._base.errors import CannotRunError, PlanError, UsageError
from ampwise.interpose.own_amp import switch_off_own_amp
from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
from planned_nets import net, plan, same_state, state_of


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


def test_torchscript_is_told_why_it_cannot_compile_a_planned_model(x):
    model = net()
    undo = apply_plan(model, plan())
    for part in (model, nn.Sequential(model)):
        with pytest.raises(CannotRunError, match=r"compute without the plan. Use torch.jit.trace\(model, inputs\)"):
            torch.jit.script(part)
    assert not hasattr(model.forward, "__globals__")
    traced = torch.jit.trace(model, x)
    expected = model(x)
    undo()
    assert torch.allclose(traced(x), expected, atol=1e-2)
    assert not torch.equal(model(x), expected)
    torch.jit.script(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.parametrize("rules", [[], [{"module": "*", "compute": "bf16"}], [{"op": "linear", "compute": "bf16"}]])
def test_no_plan_takes_effect_where_no_autocast_may(x, rules):
    model = net()
    expected = model(x)
    low = plan(*rules, default="fp32" if rules else "bf16")
    off = switch_off_own_amp(autocast=True)
    try:
        undo = apply_plan(model, low)
        with plan_in_effect(net(), low):
            assert torch.equal(model(x), expected)
        with pytest.raises(CannotRunError, match="cannot compute in"):
            apply_plan(model, plan(default="fp8_e5m2"))
        undo()
    finally:
        off()
    with plan_in_effect(model, low):
        assert not torch.equal(model(x), expected)


class ByProperty(nn.Linear):
    @property
    def forward(self):
        return super().forward


class Fixed(nn.Linear):
    def __setattr__(self, name, value):
        if name == "forward":
            raise AttributeError("this module is fixed")
        super().__setattr__(name, value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ByProperty, r'"1" \(ByProperty\) has a property'),
        (Fixed, "Fixed does not let its forward be replaced: "),
    ],
)
def test_a_forward_that_cannot_be_replaced_is_refused(kind, text):
    model = nn.Sequential(nn.Linear(4, 4), kind(4, 4))
    before = state_of(model)
    with pytest.raises(CannotRunError, match=text):
        apply_plan(
            model, plan({"module": "0", "compute": "fp32"}, {"module": "1", "compute": "fp32", "output": "fp16"})
        )
    assert same_state(before, state_of(model))
