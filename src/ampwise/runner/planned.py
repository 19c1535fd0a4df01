"""Lets a run follow a plan."""

from dataclasses import replace

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.emulate.recipes import RECIPES
from ampwise.plan.plan import Plan
from ampwise.plan.presets import get_precision
from ampwise.plan.writing import to_toml
from ampwise.runner.spec import LaunchSpec


def with_plan(spec: LaunchSpec, plan: Plan) -> LaunchSpec:
    """``spec`` in the plan's default precision and by its cast lists, with its rules.

    Raises:
        UsageError: the plan's default is not what is to be emulated.
        CannotRunError: a run cannot follow the plan.
    """
    if plan.parameters != "fp32":
        raise CannotRunError(
            f"the plan keeps parameters in {plan.parameters}; a run leaves them as the script makes them, in fp32. "
            'Cast the model in the script and use ampwise.apply_plan there, or write parameters = "fp32" in the plan'
        )
    if spec.emulate is not None:
        expected = RECIPES[spec.emulate].autocast or "fp32"
        if plan.default not in {expected, spec.emulate}:
            raise UsageError(
                f"--emulate {spec.emulate} computes in {expected} around its products, but the plan's default is "
                f'{plan.default}; write default = "{expected}" in it, or emulate {plan.default}'
            )
    precision = spec.emulate or get_precision(plan.default).name
    return replace(spec, plan=to_toml(plan), precision=precision, lists=plan.lists)
