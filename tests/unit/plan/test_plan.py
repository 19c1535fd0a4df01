import re

import pytest
import torch

from ampwise._base.errors import PlanError, UsageError
from ampwise.plan.plan import Lists, Plan, Rule, Updates

WO = Rule(module="layers.*.wo", compute="fp32", because="overflows")
SOFTMAX = Rule(op="softmax", module="*.attn", compute="fp32")


def test_the_last_rule_that_holds_decides_and_is_named():
    late = Rule(module="layers.3.*", compute="bf16")
    plan = Plan(default="fp16", rules=(WO, late))
    assert plan.resolve("layers.1.wo").rule is WO
    assert (plan.resolve("layers.3.wo").rule, plan.resolve("layers.3.wo").index) == (late, 1)
    assert plan.resolve("layers.1.wi").rule is None
    assert plan.resolve("layers.1.wi").compute == "fp16"


def test_a_rule_holds_for_all_that_runs_in_its_module():
    plan = Plan(default="fp16", rules=(WO,))
    assert plan.resolve("layers.1.wo.lora.down").compute == "fp32"
    assert plan.resolve("layers.1.wo2").compute == "fp16"


def test_a_rule_on_an_operator_leaves_the_module_itself_and_other_operators_alone():
    plan = Plan(default="fp16", rules=(SOFTMAX,))
    assert plan.resolve("enc.attn", "softmax").compute == "fp32"
    assert plan.resolve("enc.attn.inner", "F.softmax").compute == "fp32"
    assert plan.resolve("enc.attn", "linear").compute == "fp16"
    assert plan.resolve("enc.attn").compute == "fp16"
    assert plan.resolve("enc.ff", "softmax").compute == "fp16"


def test_a_later_rule_on_a_module_overrules_an_operator_in_it():
    plan = Plan(default="fp16", rules=(SOFTMAX, Rule(module="enc", compute="bf16")))
    found = plan.resolve("enc.attn", "softmax")
    assert (found.compute, found.index) == ("bf16", 1)
    assert plan.resolve("dec.attn", "softmax").index == 0


@pytest.mark.parametrize(
    ("op", "asked", "holds"),
    [
        ("softmax", "nn.Softmax", True),
        ("torch.special.softmax", "Tensor.softmax", True),
        ("softmax", "log_softmax", False),
        ("attention", "F.scaled_dot_product_attention", True),
        ("norm", "rms_norm", True),
        ("norm", "nn.LayerNorm", True),
        ("layer_norm", "norm", False),
        ("matmul", "bmm", True),
        ("torch.matmul", "bmm", False),
        ("mine::scan", "mine::scan", True),
        ("mine::scan", "mine::other", False),
    ],
)
def test_an_operator_is_known_by_all_its_spellings(op, asked, holds):
    plan = Plan(default="bf16", rules=(Rule(op=op, compute="fp32"),))
    assert (plan.resolve("any", asked).compute == "fp32") is holds


def test_a_rule_decides_whole_and_nothing_is_left_from_an_earlier_one():
    plan = Plan(
        default="bf16",
        grad="fp32",
        rules=(Rule(module="a", compute="fp8", grad="e5m2", output="bf16"), Rule(module="a.b", compute="fp16")),
    )
    assert (plan.resolve("a").compute, plan.resolve("a").grad) == ("fp8_e4m3", "fp8_e5m2")
    found = plan.resolve("a.b")
    assert (found.compute, found.output, found.grad) == ("fp16", None, None)
    assert plan.resolve("c").grad == "fp32"


def test_formats_are_kept_by_their_own_names():
    assert Rule(module="a", compute="half") == Rule(module="a", compute="fp16")
    assert Rule(module="a", compute=torch.bfloat16).compute == "bf16"
    assert Plan(default="bfloat16", parameters="float").parameters == "fp32"


def test_every_mistake_of_a_rule_is_named_at_once():
    with pytest.raises(PlanError) as caught:
        Rule(module="re:(", op="sofmax", compute="bf61", grad="fp7")
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith('compute: "bf61" is not a format; did you mean "bf16"?')
    assert lines[1].startswith('grad: "fp7" is not a format')
    assert lines[2].startswith('module: "re:(" is not a regular expression: ')
    assert lines[3].startswith('op: "sofmax" is not an operator; did you mean "softmax"?')


def test_a_rule_for_everywhere_is_a_default():
    with pytest.raises(PlanError, match="names neither a module nor an op; to set a format everywhere, write"):
        Rule(compute="fp32")


@pytest.mark.parametrize("pattern", ["", " ", "re:"])
def test_an_empty_pattern_is_refused(pattern):
    with pytest.raises(PlanError, match=re.escape('is empty; "*" means every module')):
        Rule(module=pattern, compute="fp32")


def test_rules_that_name_one_place_and_differ_contradict_each_other_and_both_are_shown():
    one = Rule(op="softmax", module="*.attn", compute="fp32", because="overflows")
    two = Rule(op="F.softmax", module="*.attn", compute="bf16")
    text = (
        "rules[0] and rules[2] contradict each other for F.softmax in *.attn: "
        'fp32 (because "overflows"); bf16. Keep one of them'
    )
    with pytest.raises(PlanError, match=f"^{re.escape(text)}$"):
        Plan(default="fp16", rules=(one, WO, two))


def test_saying_the_same_twice_is_no_contradiction_nor_is_overlap():
    Plan(default="fp16", rules=(WO, WO, Rule(module="layers.*", compute="bf16"), SOFTMAX))


def test_every_mistake_of_a_plan_is_named_at_once():
    with pytest.raises(PlanError) as caught:
        Plan(default="fp61", parameters="int8", torch="2", updates=Updates.MASTER)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["default", "parameters", "torch"]
    with pytest.raises(PlanError, match="updates: master is for parameters below fp32; parameters are fp32"):
        Plan(default="bf16", updates=Updates.MASTER)


def test_an_unknown_operator_cannot_be_resolved():
    with pytest.raises(UsageError, match='"sofmax" is not an operator; did you mean "softmax"'):
        Plan(default="bf16").resolve("a", "sofmax")


def test_what_stands_where_nothing_is_said():
    plan = Plan(default="bf16")
    assert (plan.parameters, plan.updates, plan.lists, plan.torch) == ("fp32", Updates.NEAREST, Lists.CUDA, None)


def test_closed_words_may_be_given_as_texts():
    plan = Plan(default="bf16", parameters="bf16", updates="master", lists="stock")
    assert (plan.updates, plan.lists) == (Updates.MASTER, Lists.STOCK)
    assert isinstance(plan.updates, Updates)
    with pytest.raises(PlanError, match='updates: "mastr" is not a value of updates; did you mean "master"'):
        Plan(default="bf16", parameters="bf16", updates="mastr")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"module": 3, "compute": "fp32"}, "module: is int 3; give text"),
        ({"op": ["softmax"], "compute": "fp32"}, "op: is list"),
        ({"module": "a", "compute": "fp32", "because": b"x"}, "because: is bytes"),
        ({"module": "a", "compute": None}, "compute: is missing; give the format to compute in"),
    ],
)
def test_a_rule_of_the_wrong_kinds_is_refused(fields, text):
    with pytest.raises(PlanError, match=text):
        Rule(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"default": None}, "default: is missing"),
        ({"rules": "softmax"}, "rules: is str; give a tuple of ampwise.Rule"),
        ({"rules": (Rule(op="softmax", compute="fp32"), {"op": "mean"})}, r"rules\[1\]: is dict; give an ampwise.Rule"),
        ({"torch": 2.13}, "torch: is float 2.13; give text"),
    ],
)
def test_a_plan_of_the_wrong_kinds_is_refused(fields, text):
    with pytest.raises(PlanError, match=text):
        Plan(**{"default": "bf16", **fields})


def test_a_list_of_rules_is_as_good_as_a_tuple():
    rule = Rule(op="softmax", compute="fp32")
    assert hash(Plan(default="bf16", rules=[rule])) == hash(Plan(default="bf16", rules=(rule,)))
