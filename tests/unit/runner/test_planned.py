import pytest

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.plan.file import parse_plan
from ampwise.plan.plan import Lists, Plan, Rule
from ampwise.runner.planned import with_plan
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
    with pytest.raises(CannotRunError, match="keeps parameters in bf16; a run leaves them"):
        with_plan(LaunchSpec(), Plan(default="bf16", parameters="bf16"))
