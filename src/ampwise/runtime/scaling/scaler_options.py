"""What a GradScaler starts from, given as torch's options or as a loss scale."""

import math
import numbers
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from ampwise._base.errors import UsageError
from ampwise.runtime.scaling.headroom import HeadroomLossScale, Statistics
from ampwise.runtime.scaling.headroom_update import HeadroomRules
from ampwise.runtime.scaling.loss_scale import (
    LARGEST_SCALE,
    SMALLEST_USEFUL_SCALE,
    TORCH_INIT_SCALE,
    DynamicLossScale,
    LossScale,
    NoLossScale,
    StaticLossScale,
    get_loss_scale,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerOptions:
    """The first seven are ``DynamicLossScale``'s, by torch's names."""

    init_scale: float = TORCH_INIT_SCALE
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = SMALLEST_USEFUL_SCALE
    max_scale: float = LARGEST_SCALE
    hysteresis: int = 1
    growth_tracker: int = 0
    num_overflows: int = 0
    enabled: bool = True
    headroom: HeadroomRules | None = None
    statistics: Statistics = field(default_factory=Statistics)

    def __post_init__(self) -> None:
        if not 0.0 < self.min_scale <= self.max_scale < math.inf:
            raise UsageError(
                f"min_scale is {self.min_scale} and max_scale {self.max_scale}; give 0 < min_scale <= max_scale < inf"
            )
        if self.hysteresis < 1:
            raise UsageError(f"hysteresis is {self.hysteresis}; give 1 (back off at once, torch's way) or more")

    def of_torch(self) -> tuple[float, float, float, int, bool]:
        """What torch's own scaler takes after the device, in its order."""
        return self.init_scale, self.growth_factor, self.backoff_factor, self.growth_interval, self.enabled

    def or_loss_scale(self, given: Any) -> "ScalerOptions":
        """The options of ``given``, a loss scale or the name of one; these options where it is None.

        Raises:
            UsageError: it is no loss scale, or options are given beside it.
        """
        if given is None:
            return self
        plain = ScalerOptions(enabled=self.enabled)
        names = [one.name for one in fields(self) if getattr(self, one.name) != getattr(plain, one.name)]
        if names:
            raise UsageError(f"loss_scale= and {', '.join(names)} are both given; give a loss scale made with those")
        return options_of(get_loss_scale(given), enabled=self.enabled)

    def loss_scale(self) -> LossScale:
        """The loss scale that starts and moves by these options."""
        if self.headroom is not None:
            rules = {one.name: getattr(self.headroom, one.name) for one in fields(self.headroom)}
            return HeadroomLossScale(
                scale=self.init_scale, growth_tracker=self.growth_tracker, statistics=self.statistics, **rules
            )
        return DynamicLossScale(scale=self.init_scale, **_dynamic_fields(self))


def checked_scale(new_scale: Any) -> float | Tensor:
    """A tensor as it is; any other real number as a float, which is all torch takes."""
    if isinstance(new_scale, Tensor):
        return new_scale
    if not isinstance(new_scale, numbers.Real) or not 0.0 < float(new_scale) < math.inf:
        raise UsageError(f"update({new_scale!r}): give a positive finite number or a 1-element tensor, such as 65536.0")
    return float(new_scale)


def options_of(loss_scale: LossScale, *, enabled: bool = True) -> ScalerOptions:
    """The options that start a scaler at ``loss_scale`` and move it by its rules."""
    match loss_scale:
        case NoLossScale():
            return ScalerOptions(enabled=False)
        case StaticLossScale(scale=scale):
            return ScalerOptions(init_scale=scale, min_scale=scale, max_scale=scale, enabled=enabled)
        case DynamicLossScale() as state:
            return ScalerOptions(init_scale=state.scale, enabled=enabled, **_dynamic_fields(state))
        case HeadroomLossScale() as state:
            return ScalerOptions(
                init_scale=state.scale,
                growth_interval=state.growth_interval,
                min_scale=state.min_scale,
                max_scale=state.max_scale,
                growth_tracker=state.growth_tracker,
                enabled=enabled,
                headroom=HeadroomRules.of(state),
                statistics=state.statistics,
            )


def _dynamic_fields(owner: ScalerOptions | DynamicLossScale) -> dict[str, Any]:
    """What options and a dynamic loss scale name alike: all but where the scale stands."""
    return {one.name: getattr(owner, one.name) for one in fields(DynamicLossScale) if one.name != "scale"}
