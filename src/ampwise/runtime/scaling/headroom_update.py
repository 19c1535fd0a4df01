"""``HeadroomLossScale``'s transition on the device, without a branch on what the device holds."""

from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from ampwise.runtime.scaling.headroom import (
    DEFICIT,
    LONG,
    RECENT,
    SLACK,
    UNMEASURED_MARGIN,
    HeadroomLossScale,
    Statistics,
)

_BIAS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomRules:
    """What the transition obeys; the names are ``HeadroomLossScale``'s."""

    num_deviations: float
    largest_exponent: int
    growth_interval: int
    min_scale: float
    max_scale: float

    @classmethod
    def of(cls, loss_scale: HeadroomLossScale) -> "HeadroomRules":
        """The rules of a value."""
        return cls(
            num_deviations=loss_scale.num_deviations,
            largest_exponent=loss_scale.largest_exponent,
            growth_interval=loss_scale.growth_interval,
            min_scale=loss_scale.min_scale,
            max_scale=loss_scale.max_scale,
        )


def to_device(statistics: Statistics, device: torch.device) -> Tensor:
    """The statistics as a tensor of shape (6,): fp64, or fp32 on MPS, which has no fp64."""
    return torch.tensor(astuple(statistics), dtype=_wide(device), device=device)


def from_device(statistics: Tensor) -> Statistics:
    """What ``to_device`` was given, or what became of it; waits for the device."""
    names = (field.name for field in fields(Statistics))
    return Statistics(**dict(zip(names, statistics.tolist(), strict=True)))


@torch.no_grad()
def follow_(
    scale: Tensor, growth_tracker: Tensor, statistics: Tensor, found_inf: Tensor, amax: Tensor, rules: HeadroomRules
) -> None:
    """Move the three tensors to what ``adjust(found_inf == 0, amax)`` gives, bit for bit but on MPS.

    Args:
        scale: 0-dim fp32, changed in place.
        growth_tracker: 0-dim int32, changed in place.
        statistics: as ``to_device`` makes them, changed in place.
        found_inf: 0-dim; not 0 after an overflow.
        amax: 0-dim fp32, the magnitude of the largest unscaled gradient; 0 if nobody measured it.
        rules: the bounds.
    """
    found = found_inf != 0
    is_seen = ~found & amax.isfinite() & (amax > 0)
    seen = torch.where(is_seen, _observed(statistics, _exponent(amax)), statistics)
    counted = growth_tracker + 1
    is_due = ~found & (counted >= rules.growth_interval)
    margin = torch.where(is_due, (seen[5] - SLACK).clamp(min=0.0), seen[5])
    current = (_exponent(scale) - 1).to(statistics.dtype)
    target = rules.largest_exponent - _highest(seen, rules.num_deviations)
    is_known = seen[3] != 0
    is_first = is_known & (statistics[3] == 0) & (margin > 0)
    margin = torch.where(is_first, (target - current).clamp(min=0.0), margin)
    room = target - margin - current
    stays = (room >= DEFICIT) & (room < SLACK)
    followed = torch.where(stays, current, (target - margin).floor())
    risen = torch.where(is_known, followed, current + is_due)
    after = _bounded(torch.where(found, current - 1, risen), rules)
    needed = torch.where(is_known, target - (_exponent(after) - 1).to(statistics.dtype), UNMEASURED_MARGIN)
    scale.copy_(after)
    statistics.copy_(seen)
    statistics[5] = torch.where(found, torch.maximum(needed, margin), margin)
    growth_tracker.copy_(torch.where(found | is_due, 0, counted))


def _observed(statistics: Tensor, exponent: Tensor) -> Tensor:
    value = exponent.to(statistics.dtype)
    one = torch.ones_like(value)
    seen = torch.stack([value, one, value, one, value * value, torch.zeros_like(value)])
    decay = torch.full_like(statistics, LONG)
    decay[:2], decay[5] = RECENT, 1.0
    gain = torch.full_like(statistics, 1.0 - LONG)
    gain[:2] = 1.0 - RECENT
    return statistics * decay + seen * gain


def _highest(seen: Tensor, num_deviations: float) -> Tensor:
    """The exponent that the largest gradient seldom passes."""
    mean = seen[2] / seen[3]
    variance = (seen[4] / seen[3] - mean * mean).clamp(min=0.0)
    return seen[0] / seen[1] + variance.sqrt() * num_deviations


def _bounded(exponent: Tensor, rules: HeadroomRules) -> Tensor:
    """2 to a whole exponent, within the bounds; put together from bits, since no device's ``exp2`` need be exact."""
    bits = (exponent.clamp(-126, 127).to(torch.int32) + _BIAS) << 23
    return bits.view(torch.float32).clamp(rules.min_scale, rules.max_scale)


def _exponent(magnitude: Tensor) -> Tensor:
    """``headroom.exponent_of`` of fp32 numbers; int32."""
    return (magnitude.view(torch.int32) >> 23) - (_BIAS - 1)


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
