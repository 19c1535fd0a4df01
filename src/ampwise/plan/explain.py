"""What a plan makes of one operator: where which format, and by which rule."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ampwise._base.errors import UsageError
from ampwise.plan.checks import quoted
from ampwise.plan.names import op_mistake, operators_meant
from ampwise.plan.operators import CastLists, CastPolicy, cast_lists
from ampwise.plan.plan import Lists, Plan, Rule

_WITHOUT_AUTOCAST = ("fp64", "fp32", "tf32")
"""Formats in which a region has no autocast: no list is asked there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPlace:
    """What happens to the operator where one rule decides, or where none does."""

    rule: Rule | None
    """None where no rule holds."""
    index: int | None
    compute: str
    """What the place's other operators are computed in, too, where the lists are asked."""
    policies: Mapping[str, tuple[CastPolicy | None, ...]] | None
    """Device type -> what the lists say of the operator's overloads; None where they are not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOperator:
    """What a plan makes of an operator."""

    name: str
    """As it was asked for."""
    torch_version: str
    """Whose cast lists hold."""
    places: tuple[OperatorPlace, ...]
    """The first whose rule holds decides; the last is everywhere else."""


def explain_in_plan(name: str, plan: Plan) -> PlannedOperator:
    """What ``plan`` makes of the operator ``name``.

    Raises:
        UsageError: no operator is called so.
    """
    operators = operators_meant(name)
    if not operators:
        raise UsageError(f"{quoted(name)} {op_mistake(name)}")
    lists = cast_lists(plan.torch)
    return PlannedOperator(name=name, torch_version=lists.torch_version, places=tuple(_places(operators, plan, lists)))


def _places(operators: frozenset[str], plan: Plan, lists: CastLists) -> Iterator[OperatorPlace]:
    for index, rule in reversed(list(enumerate(plan.rules))):
        if rule.operators is None:
            yield _place(rule.compute, operators, plan, lists, rule=rule, index=index)
        elif operators & rule.operators:
            yield OperatorPlace(rule=rule, index=index, compute=rule.compute, policies=None)
            if rule.module is None:
                return  # it holds everywhere, so that nothing above it is ever asked
    yield _place(plan.default, operators, plan, lists)


def _place(
    compute: str,
    operators: frozenset[str],
    plan: Plan,
    lists: CastLists,
    *,
    rule: Rule | None = None,
    index: int | None = None,
) -> OperatorPlace:
    asked = compute not in _WITHOUT_AUTOCAST
    policies = _policies(operators, plan, lists) if asked else None
    return OperatorPlace(rule=rule, index=index, compute=compute, policies=policies)


def _policies(operators: frozenset[str], plan: Plan, lists: CastLists) -> dict[str, tuple[CastPolicy | None, ...]]:
    """What the plan's lists say of every overload that they have of the operators; of none, that they say nothing."""
    found: dict[str, tuple[CastPolicy | None, ...]] = {}
    for device_type, stock in lists.devices.items():
        in_force = stock if plan.lists is Lists.STOCK else lists.in_force(device_type)
        said = [policy for overload, policy in in_force.items() if overload.partition(".")[0] in operators]
        found[device_type] = tuple(dict.fromkeys(said)) or (None,)
    return found
