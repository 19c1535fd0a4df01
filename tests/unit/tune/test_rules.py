"""The plan of what stays: what is kept computes in fp32 when the plan is put on a model, and nothing else does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ampwise
from ampwise._base.errors import UsageError
from ampwise.plan.plan import Plan, Rule
from ampwise.tune.rules import check_fit, pattern, plan_of
from ampwise.tune.units import Place
from made_up_runs import module

LOW = Plan(default="bf16")


class Own(nn.Module):
    """Multiplies by itself, and calls what it holds."""

    def __init__(self, **parts):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))
        self.seen = None
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        product = x @ self.weight
        self.seen = product.dtype
        for part in self.children():
            product = part(product.float())
        return product


def model():
    return Own(a=Own(b=Own(), c=Own(d=Own())), e=Own())


PATHS = ("", "a", "a.b", "a.c", "a.c.d", "e")


def whole(*paths):
    return [Place(module=path) for path in paths]


MODULES = [module(path, calls_modules=path in {"", "a", "a.c"}) for path in PATHS]


@settings(max_examples=30)
@given(st.sets(st.sampled_from(PATHS)))
def test_what_is_kept_computes_in_fp32_and_nothing_else_does(kept):
    net = model()
    undo = ampwise.apply_plan(net, plan_of(LOW, whole(*kept), MODULES))
    net(torch.ones(2, 4))
    undo()
    seen = {path for path in PATHS if net.get_submodule(path).seen is torch.float32}
    assert seen == kept


def test_all_that_lies_below_a_kept_module_needs_no_rule():
    rules = plan_of(LOW, whole("a", "a.b", "a.c", "a.c.d"), MODULES).rules
    assert [(rule.module, rule.compute) for rule in rules] == [("a", "fp32")]


def test_what_a_kept_module_calls_is_computed_low_again():
    rules = plan_of(LOW, whole("a", "a.c.d"), MODULES).rules
    assert [(rule.module, rule.compute) for rule in rules] == [("a", "fp32"), ("a.*", "bf16"), ("a.c.d", "fp32")]
    assert all(rule.because is None for rule in rules if rule.compute == "fp32")


def test_rules_of_the_plan_to_begin_with_are_not_overruled_below():
    base = Plan(default="bf16", rules=(Rule(op="softmax", compute="bf16"),))
    rules = plan_of(base, whole("a"), MODULES, high="fp32", why=lambda path: f"{path} is bad").rules
    assert [(rule.place(), rule.compute, rule.because) for rule in rules] == [
        ("softmax", "bf16", None),
        ("a", "fp32", "a is bad"),
    ]


def test_a_shared_module_is_kept_by_all_its_names():
    shared = nn.Linear(4, 4)
    net = nn.Sequential(shared, nn.Tanh(), shared)
    plan = plan_of(LOW, whole("0"), [module("0", aliases=("2",)), module("1"), module("", calls_modules=True)])
    assert [rule.module for rule in plan.rules] == ["0", "2"]
    undo = ampwise.apply_plan(net, plan)
    dtypes = []
    handle = shared.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
    net(torch.ones(2, 4))
    handle.remove()
    undo()
    assert dtypes == [torch.float32, torch.float32]


def test_names_that_look_like_patterns_mean_themselves():
    assert pattern("a[0]") == r"re:a\[0\]"
    rules = plan_of(LOW, whole("a[0]"), [module("a[0]", calls_modules=True), module("a[0].b"), module("a0")]).rules
    plan = Plan(default="bf16", rules=rules)
    assert plan.resolve("a[0]").compute == "fp32"
    assert plan.resolve("a[0].b").compute == "bf16"
    assert plan.resolve("a0").compute == "bf16"


def test_the_model_itself_is_a_pattern_too():
    rules = plan_of(LOW, whole(""), MODULES).rules
    plan = Plan(default="bf16", rules=rules)
    assert plan.resolve("").compute == "fp32"
    assert plan.resolve("a").compute == plan.resolve("a.c.d").compute == "bf16"


def test_a_plan_that_nearly_fits_does_not_fit():
    with pytest.raises(UsageError, match=r'"a\.bb" matches no module; did you mean "a\.b"'):
        check_fit(Plan(default="bf16", rules=(Rule(module="a.bb", compute="fp32"),)), MODULES)
    check_fit(Plan(default="bf16", rules=(Rule(module="a.*", compute="fp32"),)), MODULES)
    two = [module("critic.layers.0"), module("actor.fc")]
    check_fit(Plan(default="bf16", rules=(Rule(module="layers.0", compute="fp32"),)), two)
    check_fit(Plan(default="bf16", rules=(Rule(module="critic.layers", compute="fp32"),)), two)
