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


OPS = ("matmul", "mul")


class Several(nn.Module):
    """Two operators of its own, then what it holds; remembers in which format each computed."""

    def __init__(self, **parts):
        super().__init__()
        self.seen = {}
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        self.seen = {"matmul": (x @ torch.eye(4)).dtype, "mul": (x.bfloat16() * x.bfloat16()).dtype}
        for part in self.children():
            part(x)
        return x


def several():
    return Several(a=Several(b=Several(), c=Several(d=Several())), e=Several())


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.tuples(st.sampled_from(PATHS), st.sampled_from(OPS))),
    st.sets(st.sampled_from(PATHS), max_size=2),
    st.sets(st.sampled_from(OPS)),
)
def test_operators_that_are_kept_compute_in_fp32_and_nothing_else_does(parts, kept, outside):
    net = several()
    modules = [module(path, calls_modules=path in {"", "a", "a.c"}, operators=OPS) for path in PATHS]
    places = [Place(module=path, operators=(op,)) for path, op in sorted(parts)]
    places += [*whole(*sorted(kept)), *(Place(module=None, operators=(op,)) for op in sorted(outside))]
    undo = ampwise.apply_plan(net, plan_of(LOW, places, modules))
    net(torch.ones(2, 4))
    undo()
    seen = {(path, op) for path in PATHS for op in OPS if net.get_submodule(path).seen[op] is torch.float32}
    below = {path for path in kept if path}  # what a kept module's own tensors are is theirs to say
    expected = parts | {(path, "matmul") for path in kept}
    assert {one for one in seen if one[0] not in below} - {("", "mul")} == {
        one for one in expected if one[0] not in below
    } - {("", "mul")}


def test_an_operator_that_stays_in_every_module_takes_one_rule():
    modules = [module("", calls_modules=True), *(module(f"blocks.{i}.norm", operators=("mul",)) for i in range(3))]
    places = [Place(module=f"blocks.{i}.norm", operators=("mul",)) for i in range(3)]
    rules = plan_of(LOW, places, modules, why=lambda name: f"{name} is bad").rules
    assert [(rule.module, rule.op) for rule in rules] == [(None, "mul")]
    assert rules[0].because == "mul in blocks.0.norm is bad; so in 3 modules, such as blocks.0.norm"
    others = [*modules, module("head", operators=("mul",))]
    assert [(rule.module, rule.op) for rule in plan_of(LOW, places, others).rules] == [("blocks.*.norm", "mul")]
    more = [*modules, module("blocks.9.norm", operators=("mul",))]
    assert [(rule.module, rule.op) for rule in plan_of(LOW, places, more).rules] == [
        (f"blocks.{i}.norm", "mul") for i in range(3)
    ]


def test_an_operator_outside_of_the_modules_is_taken_back_in_them():
    outside = [Place(module=None, operators=("matmul",))]
    rules = plan_of(LOW, outside, [module("a", operators=("matmul",))]).rules
    assert [(rule.module, rule.op, rule.compute) for rule in rules] == [(None, "matmul", "fp32"), ("*", None, "bf16")]
    assert len(plan_of(LOW, outside, [module("a", operators=("linear",))]).rules) == 1


def test_a_rule_of_the_plan_to_begin_with_on_the_same_place_gives_way():
    base = Plan(default="bf16", rules=(Rule(module="a", op="mul", compute="bf16"), Rule(op="mul", compute="bf16")))
    modules = [module(path, operators=("mul",)) for path in ("a", "b", "c")]
    rules = plan_of(base, [Place(module=path, operators=("mul",)) for path in ("a", "b")], modules).rules
    assert [(rule.module, rule.compute) for rule in rules] == [(None, "bf16"), ("a", "fp32"), ("b", "fp32")]
    every = plan_of(base, [Place(module=path, operators=("mul",)) for path in ("a", "b", "c")], modules).rules
    assert [(rule.module, rule.compute) for rule in every][-1] == ("*", "fp32")
