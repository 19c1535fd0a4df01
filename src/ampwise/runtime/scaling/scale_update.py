"""The moving loss scales' transitions on the device, without a branch on what the device holds."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ampwise.compat.scaler import update_scale_
from ampwise.runtime.scaling.headroom_update import HeadroomRules, follow_, from_device, to_device
from ampwise.runtime.scaling.loss_scale import (
    LARGEST_SCALE,
    SMALLEST_USEFUL_SCALE,
    DynamicLossScale,
    HeadroomLossScale,
    LossScale,
    NoLossScale,
    StaticLossScale,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRules:
    """What the transition obeys; the names are ``DynamicLossScale``'s."""

    growth_factor: float
    backoff_factor: float
    growth_interval: int
    min_scale: float = SMALLEST_USEFUL_SCALE
    max_scale: float = LARGEST_SCALE
    hysteresis: int = 1


Rules = ScaleRules | HeadroomRules


@dataclass(slots=True, kw_only=True)
class ScaleState:
    """The device side of a moving loss scale: tensors that are changed in place."""

    scale: Tensor
    growth_tracker: Tensor
    num_overflows: Tensor
    statistics: Tensor | None = None
    """``HeadroomLossScale``'s, in the order of their fields."""


def advance_(state: ScaleState, found_inf: Tensor, rules: Rules, *, amax: Tensor | None = None) -> None:
    """Move ``state`` to what the value's ``adjust(found_inf == 0)`` gives, bit for bit.

    Args:
        state: changed in place.
        found_inf: 0-dim fp32; not 0 after an overflow.
        rules: the factors and bounds.
        amax: 0-dim fp32, the magnitude of the largest unscaled gradient, for ``HeadroomRules``; None if not measured.
    """
    if isinstance(rules, HeadroomRules):
        assert state.statistics is not None  # noqa: S101 - those who have the rules have the statistics
        amax = torch.zeros_like(state.scale) if amax is None else amax
        follow_(state.scale, state.growth_tracker, state.statistics, found_inf, amax, rules)
        return
    if rules.hysteresis == 1:
        update_scale_(
            state.scale,
            state.growth_tracker,
            found_inf,
            rules.growth_factor,
            rules.backoff_factor,
            rules.growth_interval,
        )
    else:
        _advance_with_hysteresis_(state, found_inf != 0, rules)
    state.scale.clamp_(rules.min_scale, rules.max_scale)


def back_off_once_(state: ScaleState, found_inf: Tensor, made_with: Tensor, rules: Rules) -> None:
    """Take in one more optimizer of a step that has been counted: it may back off, never grow.

    Args:
        state: changed in place.
        found_inf: 0-dim fp32; not 0 after an overflow.
        made_with: the scale the gradients were made with. An overflow backs off from it, so two optimizers that
            overflow in one step back off once.
        rules: the factors and bounds.
    """
    found = found_inf != 0
    factor = 0.5 if isinstance(rules, HeadroomRules) else rules.backoff_factor
    backed_off = torch.minimum(state.scale, _product(made_with, factor))
    state.scale.copy_(torch.where(found, backed_off, state.scale)).clamp_(rules.min_scale, rules.max_scale)
    state.growth_tracker.mul_(~found)


def rules_of(loss_scale: LossScale) -> Rules:
    """What a loss scale moves by; one that does not move has no room between its bounds."""
    match loss_scale:
        case NoLossScale() | StaticLossScale():
            scale = loss_scale.scale
            return ScaleRules(
                growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, min_scale=scale, max_scale=scale
            )
        case DynamicLossScale() as state:
            return ScaleRules(
                growth_factor=state.growth_factor,
                backoff_factor=state.backoff_factor,
                growth_interval=state.growth_interval,
                min_scale=state.min_scale,
                max_scale=state.max_scale,
                hysteresis=state.hysteresis,
            )
        case HeadroomLossScale() as state:
            return HeadroomRules.of(state)


def state_of(loss_scale: LossScale, device: torch.device) -> ScaleState:
    """A loss scale on the device."""
    follows = isinstance(loss_scale, HeadroomLossScale)
    tracker, overflows = (getattr(loss_scale, name, 0) for name in ("growth_tracker", "num_overflows"))
    return ScaleState(
        scale=torch.full((), loss_scale.scale, device=device),
        growth_tracker=torch.full((), tracker, dtype=torch.int32, device=device),
        num_overflows=torch.full((), overflows, dtype=torch.int32, device=device),
        statistics=to_device(loss_scale.statistics, device) if follows else None,
    )


def read_state(state: ScaleState, start: LossScale) -> LossScale:
    """What became of ``start`` on the device; waits for it."""
    match start:
        case NoLossScale() | StaticLossScale():
            return start
        case DynamicLossScale():
            overflows = int(state.num_overflows) if start.hysteresis > 1 else start.num_overflows
            return replace(
                start, scale=float(state.scale), growth_tracker=int(state.growth_tracker), num_overflows=overflows
            )
        case HeadroomLossScale():
            assert state.statistics is not None  # noqa: S101 - its state was made with them
            return replace(
                start,
                scale=float(state.scale),
                growth_tracker=int(state.growth_tracker),
                statistics=from_device(state.statistics),
            )


def _advance_with_hysteresis_(state: ScaleState, found: Tensor, rules: ScaleRules) -> None:
    overflows = torch.where(found, (state.num_overflows + 1).clamp(max=rules.hysteresis), 0)
    counted = state.growth_tracker + 1
    grown = _product(state.scale, rules.growth_factor)
    is_due = counted >= rules.growth_interval
    after_finite = torch.where(is_due & grown.isfinite(), grown, state.scale)
    backed_off = _product(state.scale, rules.backoff_factor)
    after_overflow = torch.where(overflows >= rules.hysteresis, backed_off, state.scale)
    state.scale.copy_(torch.where(found, after_overflow, after_finite))
    state.growth_tracker.copy_(torch.where(found | is_due, 0, counted))
    state.num_overflows.copy_(overflows)


def _product(scale: Tensor, factor: float) -> Tensor:
    """The product in double precision rounded to fp32, as torch's kernel takes it; MPS has no double."""
    wide = scale if scale.device.type == "mps" else scale.double()
    return (wide * factor).float()
