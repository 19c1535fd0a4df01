import pytest

from ampwise._base.errors import UsageError
from ampwise.plan.explain import explain_in_plan
from ampwise.plan.operators import CastPolicy, cast_lists
from ampwise.plan.plan import Lists, Plan, Rule

WO = Rule(module="*.wo", compute="fp32")
SOFTMAX = Rule(op="softmax", module="*.attn", compute="bf16")
EVERYWHERE = Rule(op="norm", compute="fp32")


def places(name, *rules, **fields):
    found = explain_in_plan(name, Plan(default="fp16", rules=rules, **fields)).places
    return [(one.index, one.compute, one.policies is not None) for one in found]


def test_the_last_rule_comes_first_and_what_does_not_concern_the_operator_is_left_out():
    assert places("F.softmax", WO, SOFTMAX) == [(1, "bf16", False), (0, "fp32", False), (None, "fp16", True)]
    assert places("linear", WO, SOFTMAX) == [(0, "fp32", False), (None, "fp16", True)]


def test_nothing_is_said_of_what_a_rule_for_everywhere_hides():
    assert places("layer_norm", WO, EVERYWHERE, SOFTMAX) == [(1, "fp32", False)]


def test_a_region_in_fp32_asks_no_list_and_one_in_a_low_precision_does():
    assert places("linear", Rule(module="a", compute="bf16")) == [(0, "bf16", True), (None, "fp16", True)]
    assert explain_in_plan("linear", Plan(default="fp32")).places[0].policies is None


@pytest.mark.parametrize(("lists", "cpu"), [(Lists.CUDA, CastPolicy.FP32_SET_OPT_DTYPE), (Lists.STOCK, None)])
def test_the_plans_lists_are_asked(lists, cpu):
    (place,) = explain_in_plan("softmax", Plan(default="bf16", lists=lists)).places
    assert place.policies == {"cpu": (cpu,), "cuda": (CastPolicy.FP32_SET_OPT_DTYPE,)}


def test_a_kind_of_operators_says_each_policy_once():
    (place,) = explain_in_plan("conv", Plan(default="bf16")).places
    assert place.policies == {"cpu": (CastPolicy.LOWER,), "cuda": (CastPolicy.LOWER,)}


def test_the_plans_torch_names_the_lists():
    assert explain_in_plan("linear", Plan(default="bf16", torch="2.13")).torch_version == "2.13"
    assert explain_in_plan("linear", Plan(default="bf16")).torch_version == cast_lists().torch_version


def test_an_operator_of_the_users_own_is_taken_and_an_unknown_one_refused():
    (place,) = explain_in_plan("mine::scan", Plan(default="bf16")).places
    assert place.policies == {"cpu": (None,), "cuda": (None,)}
    with pytest.raises(UsageError, match='"sofmax" is not an operator; did you mean "softmax"'):
        explain_in_plan("sofmax", Plan(default="bf16"))
