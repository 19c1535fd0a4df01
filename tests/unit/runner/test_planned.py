import pytest

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.plan.file import parse_plan
from ampwise.plan.plan import Lists, Plan, Rule
from ampwise.plan.presets import presets
from ampwise.runner.planned import as_asked, in_precision, with_plan
from ampwise.runner.spec import LaunchSpec

RULES = (Rule(module="wo", compute="fp32", because="overflows"),)


def test_a_run_takes_the_plans_precision_lists_and_rules():
    plan = Plan(default="fp16", rules=RULES, lists=Lists.STOCK)
    spec = with_plan(LaunchSpec(device="cpu"), plan)
    assert (spec.precision, spec.lists, spec.device) == ("fp16", Lists.STOCK, "cpu")
    assert parse_plan(spec.plan) == plan


@pytest.mark.parametrize(("emulated", "default"), [("fp16", "fp16"), ("fp8_e4m3", "bf16"), ("tf32", "fp32")])
def test_an_emulated_run_keeps_the_rules(emulated, default):
    spec = with_plan(LaunchSpec(precision=emulated, emulate=emulated), Plan(default=default, rules=RULES))
    assert (spec.precision, spec.emulate, spec.plan is not None) == (emulated, emulated, True)


def test_another_format_than_the_emulated_one_is_refused():
    with pytest.raises(UsageError, match='plan\'s default is bf16; write default = "fp16" in it, or emulate bf16'):
        with_plan(LaunchSpec(precision="fp16", emulate="fp16"), Plan(default="bf16"))


def test_low_parameters_are_refused():
    with pytest.raises(CannotRunError, match="keeps parameters in fp16, in which a run cannot keep them"):
        with_plan(LaunchSpec(), Plan(default="fp16", parameters="fp16"))


@pytest.mark.parametrize(("word", "default", "rules"), [("fp16-safe", "fp16", True), ("moe", "bf16", True)])
def test_a_presets_name_is_a_precision(word, default, rules):
    spec = in_precision(LaunchSpec(), word)
    assert (spec.precision, bool(parse_plan(spec.plan).rules)) == (default, rules)


@pytest.mark.parametrize(("word", "meant"), [("auto", "auto"), ("half", "fp16"), ("bf16", "bf16")])
def test_a_format_needs_no_plan(word, meant):
    assert in_precision(LaunchSpec(), word) == LaunchSpec(precision=meant)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("fp16-saf", 'did you mean "fp16-safe"?'),
        ("plan.toml", "give it as --plan plan.toml"),
        ("bf61", 'did you mean "bf16"?'),
    ],
)
def test_what_is_no_precision_is_refused_with_what_was_meant(word, text):
    with pytest.raises(UsageError, match=text):
        in_precision(LaunchSpec(), word)


def test_what_is_emulated_says_the_precision():
    with pytest.raises(UsageError, match="--emulate fp16 says the precision already"):
        in_precision(LaunchSpec(precision="fp16", emulate="fp16"), "t5")


LINEAR = Rule(op="linear", compute="fp8_e4m3", grad="fp8_e5m2")
LINEAR_IN_A = Rule(module="a.*", op="linear", compute="fp8_e4m3")
LOW_AGAIN = Rule(module="a.*", compute="bf16")


@pytest.mark.parametrize(
    ("emulated", "rules", "what"),
    [
        ("fp8_e4m3", (LINEAR_IN_A,), "every product with a weight"),
        ("fp8_e4m3", (LINEAR_IN_A, LINEAR), "every product with a weight"),
        ("fp8_e4m3", (LINEAR, LOW_AGAIN), "every product with a weight"),
        ("fp8_e4m3", (LINEAR, *RULES, LINEAR_IN_A), "every product with a weight"),
        ("fp8_e5m2", (LINEAR,), "every product with a weight"),
        ("bf16", (LINEAR,), "no product"),
    ],
)
def test_some_products_in_fp8_and_emulation_do_not_go_together(emulated, rules, what):
    with pytest.raises(UsageError, match=rf"rules\[\d\] of the plan.*{what}.*write --emulate fp8"):
        with_plan(LaunchSpec(precision=emulated, emulate=emulated), Plan(default="bf16", rules=rules))


def test_fp8_in_every_linear_layer_is_what_is_emulated():
    rules = (LINEAR, *RULES, LOW_AGAIN, LINEAR_IN_A)
    spec = with_plan(LaunchSpec(precision="fp8_e4m3", emulate="fp8_e4m3"), Plan(default="bf16", rules=rules))
    assert parse_plan(spec.plan).rules == (*RULES, LOW_AGAIN)


def test_a_layer_that_fp8_leaves_out_is_not_what_is_emulated():
    with pytest.raises(UsageError, match=r"rules\[0\] of the plan"):  # its *.lm_head stays in bf16
        with_plan(LaunchSpec(precision="fp8_e4m3", emulate="fp8_e4m3"), presets()["fp8"].plan)


def test_a_plan_or_a_precision_is_asked_for_never_both():
    plain = LaunchSpec()
    assert as_asked(plain, plan=None, precision=None) is plain
    assert as_asked(plain, plan=None, precision="bf16").precision == "bf16"
    assert as_asked(plain, plan="t5", precision=None).plan is not None
    with pytest.raises(UsageError, match="leave --precision out"):
        as_asked(plain, plan="t5", precision="fp16")
