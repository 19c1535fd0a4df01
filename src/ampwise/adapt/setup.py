"""What a scheduler is made of, checked before it touches the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ampwise._base.errors import CannotRunError, PlanError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise.adapt.cells import SAFETY, Cells, movable
from ampwise.adapt.groups import Group, Groups, groups_of
from ampwise.adapt.schedule import Schedule
from ampwise.adapt.telemetry import Measured, parameters_of_each
from ampwise.adapt.triggers import GradNormSpike, NonFinite, OverflowShare, Trigger
from ampwise.formats.table import FORMATS
from ampwise.observe.modules import is_module, unwrapped
from ampwise.plan.binding import misfits
from ampwise.plan.find import find_plan
from ampwise.plan.plan import Plan, Updates
from ampwise.runtime.casts.cast_forward import cast_forward_of
from ampwise.runtime.casts.casting import device_type_of_model
from ampwise.runtime.casts.plan_places import without_wrappers


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A model, its plan and its groups, which fit each other."""

    model: nn.Module
    plan: Plan
    groups: tuple[Group, ...]
    low: tuple[str, ...]
    """The lowest format that the plan has in each group."""
    safer: str
    has_rest: bool
    """The groups are all of the model, as far as anything in it moves."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        return next((one.device for one in tensors), torch.device(device_type_of_model(self.model)))

    @property
    def lowest(self) -> str:
        """The lowest format of all groups."""
        return min(self.low, key=SAFETY.index)

    @property
    def weights(self) -> tuple[int, ...]:
        """How many parameters each group has, for want of a better measure of its work; at least 1."""
        return tuple(
            max(sum(one.numel() for top in group.modules for one in top.parameters()), 1) for group in self.groups
        )

    def measured(self, triggers: Sequence[Trigger], cells: Cells) -> Measured:
        """What these triggers have to know of a step."""
        has_gradients = any(isinstance(one, (NonFinite, GradNormSpike)) for one in triggers)
        has_results = any(isinstance(one, (NonFinite, OverflowShare)) for one in triggers)
        parameters, names = parameters_of_each(self.groups, self.model) if has_gradients else ((), ())
        overflow = next((one for one in triggers if isinstance(one, OverflowShare)), OverflowShare(headroom=1.0))
        limits = tuple(FORMATS[overflow.format or low].max / overflow.headroom for low in self.low)
        return Measured(
            parameters=parameters,
            names=names,
            forwards=cells.tops if has_results else (),
            limits=limits if has_results else (),
        )

    def check_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Refuse a schedule for groups that there are not."""
        names = [one.name for one in self.groups]
        for schedule in schedules:
            for name in schedule.groups or ():
                if name not in names:
                    raise UsageError(f"Schedule(groups=...): {not_one_of(name, names, kind='group')}")


def prepared(model: Any, plan: Plan | str, *, groups: Groups | None, safer: str) -> Setup:
    """What the arguments of a scheduler mean; changes nothing.

    Raises:
        UsageError: ``model`` is no module, ``safer`` is no format that a group can move to, or groups do not fit.
        PlanError: there is no such plan, it has mistakes, or it names modules that the model lacks.
        CannotRunError: the model has a plan already, or the plan has nothing to move.
    """
    if not is_module(model):
        raise UsageError(f"PrecisionScheduler was given a {type(model).__name__}; give the model, a torch.nn.Module")
    plan = find_plan(plan)
    if safer not in SAFETY[1:]:
        raise UsageError(f"safer: {not_one_of(str(safer), SAFETY[1:], kind='format to move to')}")
    inner = unwrapped(model)
    _check_free(inner)
    _check_plan(plan, inner)
    found = groups_of(inner, groups)
    moves = movable(inner, plan, found, safer=safer)
    idle = [one.name for one, is_moving in zip(found, moves, strict=True) if not is_moving]
    if all(one in idle for one in (group.name for group in found)):
        raise CannotRunError(
            f"the plan computes nothing below {safer} in {'the model' if groups is None else 'these groups'}, so there "
            f'is nothing to move; give a plan such as "{"bf16" if safer == "fp32" else "fp16"}"'
        )
    if idle and groups is not None:
        raise UsageError(f'groups: the plan computes nothing below {safer} in "{idle[0]}"; leave it out')
    chosen = tuple(one for one, is_moving in zip(found, moves, strict=True) if is_moving)
    low = tuple(_lowest(plan, one) for one in chosen)
    return Setup(model=inner, plan=plan, groups=chosen, low=low, safer=safer, has_rest=groups is None)


def _check_free(model: nn.Module) -> None:
    path = next((path for path, one in model.named_modules() if cast_forward_of(one) is not None), None)
    if path is not None:
        raise CannotRunError(
            f'a plan is in effect on this model already (at "{path or "the model itself"}"), and PrecisionScheduler '
            "puts its own on it; take the other back first: the undo that apply_plan returned, step.undo_plan() of a "
            "TrainStep(plan=...), or the other scheduler's close()"
        )


def _check_plan(plan: Plan, model: nn.Module) -> None:
    paths = [without_wrappers(raw) for raw, _ in model.named_modules()]
    missing = [text for text in misfits(plan, {"": paths}) if " matches no module" in text]
    if missing:
        raise PlanError("\n".join(missing))
    if plan.parameters != "fp32" or plan.updates is not Updates.NEAREST:
        raise CannotRunError(
            f'parameters = "{plan.parameters}": PrecisionScheduler moves what is computed, never what is kept; '
            "give a plan that keeps parameters in fp32"
        )


def _lowest(plan: Plan, group: Group) -> str:
    paths = [
        ".".join(part for part in (top, without_wrappers(raw)) if part)
        for top, module in zip(group.tops, group.modules, strict=True)
        for raw, _ in module.named_modules()
    ]
    formats = {plan.resolve(path).compute for path in paths}
    formats |= {
        rule.compute
        for rule in plan.rules
        if rule.op is not None and any(rule.holds_at(path, rule.operators) for path in paths)
    }
    return min((one for one in formats if one in SAFETY), key=SAFETY.index, default="fp32")
