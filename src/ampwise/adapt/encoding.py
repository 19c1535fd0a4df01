"""A scheduler's state as plain data, for a checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ampwise._base.errors import RecordError, UsageError
from ampwise._base.suggest import not_one_of
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
)

_KINDS: Mapping[str, type[Trigger]] = {
    "loss-curvature": LossCurvature,
    "absolute-loss-curvature": AbsoluteLossCurvature,
    "loss-spike": LossSpike,
    "grad-norm-spike": GradNormSpike,
    "nonfinite": NonFinite,
    "overflow-share": OverflowShare,
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
        raise UsageError(not_one_of(given, _KINDS, kind="trigger"))
    names = ", ".join(f'"{name}"' for name in _KINDS)
    raise UsageError(f"a trigger is {given!r}; give {names}, or a trigger such as ampwise.LossSpike()")


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


def decode(data: Mapping[str, Any]) -> tuple[SchedulerState, Combinations, Counts]:
    """What ``encode`` made ``data`` from, and what was put beside it.

    Raises:
        RecordError: it is no such thing.
    """
    try:
        state = SchedulerState(
            policy=Policy(**data["policy"]),
            triggers=tuple(_trigger(one) for one in data["triggers"]),
            groups=tuple(GroupState(**one) for one in data["groups"]),
        )
        counts = Counts(
            names=[str(one) for one in data["groups_by_name"]],
            num_steps=int(data["num_steps"]),
            num_low=[int(one) for one in data["num_low"]],
            scale=None if data["scale"] is None else torch.as_tensor(data["scale"]),
        )
        return state, Combinations(**data["combinations"]), counts
    except (KeyError, TypeError, ValueError, RuntimeError, UsageError) as error:
        raise RecordError(f"this is no state_dict() of a PrecisionScheduler: {error!r}") from error


def _kind(trigger: Trigger) -> str:
    return next(name for name, kind in _KINDS.items() if type(trigger) is kind)


def _trigger(data: Mapping[str, Any]) -> Trigger:
    fields = dict(data)
    return _KINDS[fields.pop("kind")](**fields)
