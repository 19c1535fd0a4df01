"""A scheduler's state as plain data, for a checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

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


def decode(data: Mapping[str, Any]) -> tuple[SchedulerState, Combinations]:
    """What ``encode`` made ``data`` from.

    Raises:
        RecordError: it made no such thing.
    """
    try:
        state = SchedulerState(
            policy=Policy(**data["policy"]),
            triggers=tuple(_trigger(one) for one in data["triggers"]),
            groups=tuple(GroupState(**one) for one in data["groups"]),
        )
        return state, Combinations(**data["combinations"])
    except (KeyError, TypeError, UsageError) as error:
        raise RecordError(f"this is no state_dict() of a PrecisionScheduler: {error!r}") from error


def _kind(trigger: Trigger) -> str:
    return next(name for name, kind in _KINDS.items() if type(trigger) is kind)


def _trigger(data: Mapping[str, Any]) -> Trigger:
    fields = dict(data)
    return _KINDS[fields.pop("kind")](**fields)
