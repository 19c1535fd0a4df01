"""A scheduler's state as plain data, for a checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ampwise._base.errors import RecordError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.adapt.options import shown
from ampwise.adapt.schedule import Schedule
from ampwise.adapt.state import Combinations, GroupState, Policy, SchedulerState
from ampwise.adapt.triggers import (
    AbsoluteLossCurvature,
    GradNormSpike,
    LossCurvature,
    LossSpike,
    NonFinite,
    OverflowShare,
    Trigger,
    UnderflowShare,
)

T = TypeVar("T")

_KINDS: Mapping[str, type[Trigger]] = {
    "loss-curvature": LossCurvature,
    "absolute-loss-curvature": AbsoluteLossCurvature,
    "loss-spike": LossSpike,
    "grad-norm-spike": GradNormSpike,
    "nonfinite": NonFinite,
    "overflow-share": OverflowShare,
    "underflow-share": UnderflowShare,
}


def get_trigger(given: Any) -> Trigger | Schedule:
    """The trigger that a user means by its name, or by itself.

    Raises:
        UsageError: it is neither; the text lists what is possible.
    """
    if isinstance(given, (Trigger, Schedule)):
        return given
    if isinstance(given, str) and given in _KINDS:
        return _KINDS[given]()
    if isinstance(given, str):
        raise UsageError(not_one_of(inert_line(given, max_length=60), _KINDS, kind="trigger"))
    names = ", ".join(f'"{name}"' for name in _KINDS)
    raise UsageError(f"a trigger is {shown(given)}; give {names}, or a trigger such as ampwise.LossSpike()")


def encode(state: SchedulerState, combinations: Combinations) -> dict[str, Any]:
    """The states as dicts, lists, numbers and texts."""
    triggers = [{"kind": _kind(one), **asdict(one)} for one in state.triggers]
    groups = [asdict(one) for one in state.groups]
    return {
        "policy": asdict(state.policy),
        "triggers": triggers,
        "groups": groups,
        "combinations": asdict(combinations),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a scheduler keeps beside the states."""

    names: list[str]
    """Of its groups."""
    num_steps: int
    num_low: list[int]
    """In how many of them each group computed as the plan says."""
    scale: Tensor | None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.num_low):
            raise ValueError(f"{len(self.names)} groups, {len(self.num_low)} counts of their steps")
        if self.scale is not None and self.scale.numel() != 1:
            raise ValueError(f"a loss scale of shape {tuple(self.scale.shape)}")


def decode(data: Mapping[str, Any]) -> tuple[SchedulerState, Combinations, Counts]:
    """What ``encode`` made ``data`` from, and what was put beside it.

    Raises:
        RecordError: it is no such thing.
    """
    try:
        return _decoded(data)
    except (KeyError, TypeError, ValueError, RuntimeError, UsageError) as error:
        said = inert_line(f"{type(error).__name__}: {error}")
        raise RecordError(f"this is no state_dict() of a PrecisionScheduler: {said}") from error


def _decoded(data: Mapping[str, Any]) -> tuple[SchedulerState, Combinations, Counts]:
    state = SchedulerState(
        policy=_made(Policy, data["policy"]),
        triggers=tuple(_trigger(one) for one in data["triggers"]),
        groups=tuple(_made(GroupState, one) for one in data["groups"]),
    )
    counts = Counts(
        names=[str(one) for one in data["groups_by_name"]],
        num_steps=int(data["num_steps"]),
        num_low=[int(one) for one in data["num_low"]],
        scale=None if data["scale"] is None else torch.as_tensor(data["scale"]),
    )
    combinations = _made(Combinations, data["combinations"])
    _check_numbers(state, combinations, len(counts.names))
    return state, combinations, counts


def _kind(trigger: Trigger) -> str:
    return next(name for name, kind in _KINDS.items() if type(trigger) is kind)


def _trigger(data: Mapping[str, Any]) -> Trigger:
    given = dict(data)
    return _made(_KINDS[given.pop("kind")], given)


def _made(kind: type[T], data: Mapping[str, Any]) -> T:
    """The value with these fields, each of its type."""
    from pydantic import TypeAdapter  # takes a tenth of a second, and few programs load a state

    known = {one.name for one in fields(cast("Any", kind))}
    unknown = sorted(set(data) - known)
    if unknown:
        raise ValueError(f"{kind.__name__} has no {', '.join(map(repr, unknown))}")
    return TypeAdapter(kind).validate_python(dict(data))


def _check_numbers(state: SchedulerState, combinations: Combinations, num_groups: int) -> None:
    """Refuse a state whose parts are not of as many groups."""
    sizes = {len(state.groups), combinations.num_groups}
    sizes |= {len(one.octaves) for one in state.triggers if isinstance(one, GradNormSpike) and one.octaves}
    places = {place for one in (*combinations.used, combinations.current) for place in one}
    if sizes != {num_groups} or not places <= set(range(num_groups)):
        raise ValueError(f"parts of it are not of {num_groups} groups")
