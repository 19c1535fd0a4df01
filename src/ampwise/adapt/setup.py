"""What a scheduler is made of, checked before it touches the model."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from ampwise._base.errors import CannotRunError, PlanError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.adapt.cells import SAFETY, Cells, movable
from ampwise.adapt.encoding import get_trigger
from ampwise.adapt.groups import Group, Groups, groups_of
from ampwise.adapt.options import Mistakes, Range, quoted, shown
from ampwise.adapt.schedule import Schedule
from ampwise.adapt.state import Policy
from ampwise.adapt.telemetry import Measured, parameters_of_each
from ampwise.adapt.triggers import SCALED, GradNormSpike, NonFinite, OverflowShare, Trigger, UnderflowShare
from ampwise.emulate.emulation import emulated_format
from ampwise.formats.table import FORMATS, find_format
from ampwise.observe.modules import is_module, unwrapped
from ampwise.plan.binding import misfits
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.plan.plan import Plan, Updates
from ampwise.runtime.casts.cast_forward import cast_forward_of
from ampwise.runtime.casts.casting import device_type_of_model
from ampwise.runtime.casts.plan_places import without_wrappers
from ampwise.runtime.scaling.scale_numbers import refuse

_LOG = logging.getLogger("ampwise")


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
    policy: Policy
    triggers: tuple[Trigger, ...]
    schedules: tuple[Schedule, ...]
    max_combinations: int | None
    every: int | None
    scaled: str | None
    """The format with one scale a tensor whose products a trigger looks at; None where none does."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        tensors = chain(self.model.parameters(), self.model.buffers())  # asked in every step: no more than the first
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

    def measured(self, cells: Cells) -> Measured:
        """What the triggers have to know of a step."""
        triggers = self.triggers
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
            products=cells.products,
            reach=FORMATS[self.scaled].max / (FORMATS[self.scaled].smallest_subnormal / 2) if self.scaled else math.inf,
        )


def prepared(
    model: Any,
    plan: AnyPlan,
    *,
    triggers: Sequence[Trigger | Schedule | str],
    groups: Groups | None,
    safer: str,
    policy: Mapping[str, Any],
    max_combinations: int | None,
    every: int | None,
) -> Setup:
    """What the arguments of a scheduler mean; changes nothing.

    Raises:
        UsageError: arguments that cannot be meant; all of them are named.
        PlanError: there is no such plan, it has mistakes, or it names modules that the model lacks.
        CannotRunError: the model has a plan already, or the plan has nothing to move.
    """
    mistakes = Mistakes()
    checked = mistakes.of(lambda: Policy(**policy))
    mistakes.of(lambda: refuse([*_faults(max_combinations, every)], "PrecisionScheduler"))
    chosen = mistakes.of(lambda: _triggers(triggers))
    high = mistakes.of(lambda: _safer(safer))
    read = mistakes.of(lambda: find_plan(plan))
    inner = mistakes.of(lambda: _model(model))
    found = None if inner is None else mistakes.of(lambda: groups_of(inner, groups))
    if inner is not None and read is not None:
        mistakes.of(lambda: _check_names(read, inner))
    if found is not None and chosen is not None:
        mistakes.of(lambda: _check_schedules(chosen, found))
    mistakes.refuse()
    assert checked and chosen and high and read and inner is not None and found  # noqa: S101, PT018 - none was refused
    _check_free(inner)
    _check_kept(read)
    moving, low = _moving(inner, read, found, safer=high, is_default=groups is None)
    return Setup(
        model=inner,
        plan=read,
        groups=moving,
        low=low,
        safer=high,
        has_rest=groups is None,
        policy=checked,
        triggers=tuple(one for one in chosen if not isinstance(one, Schedule)),
        schedules=tuple(one for one in chosen if isinstance(one, Schedule)),
        max_combinations=max_combinations,
        every=every,
        scaled=_scaled(chosen),
    )


def _scaled(triggers: Sequence[Trigger | Schedule]) -> str | None:
    watching = next((one for one in triggers if isinstance(one, UnderflowShare)), None)
    found = None if watching is None else watching.format or emulated_format()
    if found in SCALED:
        return found
    if all(isinstance(one, UnderflowShare) for one in triggers):
        _LOG.warning(
            "PrecisionScheduler: nothing will move: UnderflowShare() is the only trigger, and sees nothing where no "
            "fp8 is emulated when the scheduler is made; name its format=, or add triggers"
        )
    return None


def _faults(max_combinations: Any, every: Any) -> Iterator[str]:
    for name, value, least in (("max_combinations", max_combinations, 2), ("every", every, 1)):
        fault = None if value is None else Range(is_whole=True, least=least).fault(name, value)
        if fault is not None:
            yield f"{fault}, or None"


def _triggers(given: Any) -> tuple[Trigger | Schedule, ...]:
    several: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if given is None or not several:
        raise UsageError(
            f"triggers is {shown(given)}, so that nothing would ever move; give some of ampwise.NonFinite(), "
            "LossSpike(), GradNormSpike(), LossCurvature(), AbsoluteLossCurvature(), OverflowShare(), "
            "UnderflowShare(), Schedule(steps=[...])"
        )
    mistakes = Mistakes()
    chosen = [mistakes.of(partial(get_trigger, one)) for one in several]
    mistakes.refuse()
    made = tuple(one for one in chosen if one is not None)
    for kind, names in ((OverflowShare, ("format", "headroom")), (UnderflowShare, ("format",))):
        asked = {tuple(getattr(one, name) for name in names) for one in made if isinstance(one, kind)}
        if len(asked) > 1:
            raise UsageError(
                f"triggers has several {kind.__name__} with another {' or '.join(names)} each, and a step is measured "
                "by one: give one of them"
            )
    return made


def _safer(given: Any) -> str:
    word = inert_line(str(given), max_length=60)
    format_ = find_format(word)
    if format_ is None or format_.name not in SAFETY[1:]:
        raise UsageError(f"safer: {not_one_of(word, SAFETY[1:], kind='format to move to')}")
    return format_.name


def _model(given: Any) -> nn.Module:
    if not is_module(given):
        raise UsageError(f"PrecisionScheduler was given a {type(given).__name__}; give the model, a torch.nn.Module")
    return unwrapped(given)


def _check_names(plan: Plan, model: nn.Module) -> None:
    """Refuse a plan whose rules are about modules that there are not."""
    paths = [without_wrappers(raw) for raw, _ in model.named_modules()]
    missing = [text for text in misfits(plan, {"": paths}) if " matches no module" in text]
    if missing:
        raise PlanError("\n".join(missing))


def _check_schedules(chosen: Sequence[Trigger | Schedule], groups: Sequence[Group]) -> None:
    """Refuse a schedule for groups that there are not."""
    names = [one.name for one in groups]
    wanted = (name for one in chosen if isinstance(one, Schedule) for name in one.groups or ())
    missing = [name for name in dict.fromkeys(wanted) if name not in names]
    words = [inert_line(name, max_length=60) for name in names]
    if missing:
        said = (not_one_of(inert_line(name, max_length=60), words, kind="group") for name in missing)
        raise UsageError("\n".join(f"Schedule(groups=...): {one}" for one in said))


def _check_free(model: nn.Module) -> None:
    path = next((path for path, one in model.named_modules() if cast_forward_of(one) is not None), None)
    if path is not None:
        raise CannotRunError(
            f"a plan is in effect on this model already (at {quoted(path or 'the model itself')}), and "
            "PrecisionScheduler puts its own on it; take the other back first: the undo that apply_plan returned, "
            "step.undo_plan() of a TrainStep(plan=...), or the other scheduler's close(). A copy of such a model keeps "
            "the plan for good: copy it before"
        )


def _check_kept(plan: Plan) -> None:
    if plan.parameters != "fp32" or plan.updates is not Updates.NEAREST:
        raise CannotRunError(
            f'parameters = "{plan.parameters}": PrecisionScheduler moves what is computed, never what is kept; '
            "give a plan that keeps parameters in fp32"
        )


def _moving(
    model: nn.Module, plan: Plan, groups: tuple[Group, ...], *, safer: str, is_default: bool
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """The groups in which the plan computes anything below the safer format, and the lowest format of each."""
    moves = movable(model, plan, groups, safer=safer)
    idle = [quoted(one.name) for one, moving in zip(groups, moves, strict=True) if not moving]
    if len(idle) == len(groups):
        raise CannotRunError(
            f"the plan computes nothing below {safer} in {'the model' if is_default else 'these groups'}, so there "
            f'is nothing to move; give a plan such as "{"bf16" if safer == "fp32" else "fp16"}"'
        )
    if idle and not is_default:
        raise UsageError(
            f"groups: the plan computes nothing below {safer} in {', '.join(idle)}; leave "
            f"{'it' if len(idle) == 1 else 'them'} out"
        )
    chosen = tuple(one for one, is_moving in zip(groups, moves, strict=True) if is_moving)
    return chosen, tuple(_lowest(plan, one) for one in chosen)


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
