"""Lets a run follow a plan."""

from dataclasses import replace
from itertools import pairwise

from ampwise._base.errors import CannotRunError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.emulate.recipes import RECIPES
from ampwise.formats.table import find_format
from ampwise.plan.file import preset_rows
from ampwise.plan.find import find_plan
from ampwise.plan.plan import Plan, Rule
from ampwise.plan.presets import PRECISIONS, get_precision
from ampwise.plan.writing import to_toml
from ampwise.runner.spec import LaunchSpec


def as_asked(spec: LaunchSpec, *, plan: str | None, precision: str | None) -> LaunchSpec:
    """``spec`` by what ``--plan`` or ``--precision`` names, of which only one may; as it is where neither does.

    Raises:
        PlanError: the plan is wrong.
        UsageError: both are given, or what is given is not one of those possible.
        CannotRunError: a run cannot follow it.
    """
    if plan is None:
        return spec if precision is None else in_precision(spec, precision)
    if precision is not None:
        raise UsageError("--plan says the precision already, as its default; leave --precision out")
    return with_plan(spec, find_plan(plan))


def in_precision(spec: LaunchSpec, word: str) -> LaunchSpec:
    """``spec`` in what ``--precision`` names: ``auto``, a format, or a preset, whose plan it then follows.

    Raises:
        UsageError: it is none of these; or what is emulated says the precision already.
        CannotRunError: it is a format in which torch's autocast cannot train.
    """
    if spec.emulate is not None:
        raise UsageError(f"--emulate {spec.emulate} says the precision already; leave --precision out")
    if word == "auto":
        return replace(spec, precision=word)
    if is_plan_name(word):
        return with_plan(spec, find_plan(word))
    if find_format(word) is None:
        if word.endswith(".toml"):
            raise UsageError(f"{inert_line(word)} is a plan file: give it as --plan {inert_line(word)}")
        raise UsageError(not_one_of(inert_line(word), ("auto", *preset_rows()), kind="precision"))
    return replace(spec, precision=get_precision(word).name)


def is_plan_name(word: str) -> bool:
    """Whether a preset is called so that is more than a precision."""
    return word in preset_rows() and word not in PRECISIONS


def with_plan(spec: LaunchSpec, plan: Plan) -> LaunchSpec:
    """``spec`` in the plan's default precision and by its cast lists, with its rules.

    Raises:
        UsageError: the plan's default is not what is to be emulated.
        CannotRunError: a run cannot follow the plan.
    """
    if plan.parameters not in {"fp32", "bf16"}:
        raise CannotRunError(
            f"the plan keeps parameters in {plan.parameters}, in which a run cannot keep them: gradients as small as "
            'theirs come out of backward scaled, and vanish there; write parameters = "bf16" or "fp32" in the plan'
        )
    if spec.emulate is not None:
        plan = _emulated(spec.emulate, plan)
    precision = spec.emulate or get_precision(plan.default).name
    return replace(spec, plan=to_toml(plan), precision=precision, lists=plan.lists)


def _emulated(emulate: str, plan: Plan) -> Plan:
    """The plan beside an emulation: without the rules by which every linear layer is in fp8, which is emulated."""
    expected = RECIPES[emulate].autocast or "fp32"
    if plan.default not in {expected, emulate}:
        raise UsageError(
            f"--emulate {emulate} computes in {expected} around its products, but the plan's default is "
            f'{plan.default}; write default = "{expected}" in it, or emulate {plan.default}'
        )
    rest = replace(plan, rules=tuple(rule for rule in plan.rules if rule.compute != emulate))
    if emulate.startswith("fp8") and _is_in_every_product(emulate, plan):
        return rest
    fp8 = next((index for index, rule in enumerate(plan.rules) if rule.compute.startswith("fp8")), None)
    if fp8 is not None:
        raise UsageError(
            f"rules[{fp8}] of the plan computes in fp8, where the plan says; --emulate {emulate} takes "
            f"{'every product with a weight' if emulate.startswith('fp8') else 'no product'} in fp8. "
            "Leave --plan out and write --emulate fp8, or leave the rule out of the plan"
        )
    return plan


def _is_in_every_product(emulate: str, plan: Plan) -> bool:
    """Whether ``linear`` is in the format wherever autocast is on: first of all, and where the default returns."""
    linear = Rule(op="linear", compute=emulate)
    places = [rule.module for rule in plan.rules if rule.operators is None and rule.compute == plan.default]
    again = [
        rule.module
        for before, rule in pairwise(plan.rules)
        if (before.operators, before.module, before.compute) == (None, rule.module, plan.default)
        and (rule.operators, rule.compute) == (linear.operators, emulate)
    ]
    in_fp8 = [rule for rule in plan.rules if rule.compute.startswith("fp8")]
    first = plan.rules[0] if plan.rules else None
    is_first = first is not None and (first.selector, first.compute) == (linear.selector, emulate)
    return is_first and places == again and len(in_fp8) == 1 + len(again)
