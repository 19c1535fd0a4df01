from ampwise.plan.diff import KeyChange, RuleChange, diff
from ampwise.plan.plan import Lists, Plan, Rule

WO = Rule(module="*.wo", compute="fp32", because="overflows")
SOFTMAX = Rule(op="softmax", compute="fp32")
HEAD = Rule(module="head", compute="bf16")


def test_equal_plans_do_not_differ():
    assert diff(Plan(default="fp16", rules=(WO,)), Plan(default="half", rules=(WO,))).is_empty


def test_what_differs():
    spelt_otherwise = Rule(op="F.softmax", compute="bf16")
    before = Plan(default="fp16", rules=(WO, SOFTMAX))
    after = Plan(default="bf16", rules=(spelt_otherwise, HEAD), lists=Lists.STOCK, torch="2.13")
    found = diff(before, after)
    assert found.keys == (
        KeyChange(key="default", before="fp16", after="bf16"),
        KeyChange(key="lists", before="cuda", after="stock"),
        KeyChange(key="torch", before=None, after="2.13"),
    )
    assert (found.removed, found.added) == ((WO,), (HEAD,))
    assert found.changed == (RuleChange(before=SOFTMAX, after=spelt_otherwise),)
    assert not found.is_reordered


def test_order_matters_for_rules_that_both_have():
    assert diff(Plan(default="fp16", rules=(WO, HEAD)), Plan(default="fp16", rules=(HEAD, WO))).is_reordered


def test_another_reason_is_a_difference():
    assert not diff(
        Plan(default="fp16", rules=(WO,)), Plan(default="fp16", rules=(Rule(module="*.wo", compute="fp32"),))
    ).is_empty
