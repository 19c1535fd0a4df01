"""Says what the loss is multiplied by, and what the next step's factor is, as values that know no device."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Self

from ampwise._base.errors import RecordError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise.runtime.scaling.headroom import HeadroomLossScale, Statistics
from ampwise.runtime.scaling.scale_numbers import (
    LARGEST_SCALE,
    SMALLEST_USEFUL_SCALE,
    TORCH_INIT_SCALE,
    as_fp32,
    refuse,
    scale_faults,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLossScale:
    """The factor 1: bf16, tf32 and fp32 gradients need no help."""

    @property
    def scale(self) -> float:
        """What the loss is multiplied by."""
        return 1.0

    def adjust(self, finite: bool) -> Self:  # noqa: ARG002, FBT001 - the law of every loss scale
        """The state after a step whose gradients were ``finite`` or not: itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticLossScale:
    """The same factor at every step; steps with non-finite gradients are skipped."""

    scale: float = TORCH_INIT_SCALE

    def __post_init__(self) -> None:
        refuse([*scale_faults("scale", self.scale)], "StaticLossScale")

    def adjust(self, finite: bool) -> Self:  # noqa: ARG002, FBT001 - the law of every loss scale
        """The state after a step whose gradients were ``finite`` or not: itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicLossScale:
    """A factor that backs off when gradients overflow and grows after a run of steps when they did not.

    With ``hysteresis=1`` and between its bounds this is ``torch.amp.GradScaler``'s algorithm, bit for bit:
    products are taken in double precision and rounded to fp32.

    Args:
        scale: what the loss is multiplied by now.
        growth_factor: what the scale grows by.
        backoff_factor: what the scale is multiplied by after an overflow.
        growth_interval: how many finite steps in a row it takes to grow.
        min_scale: the scale never falls below it.
        max_scale: the scale never grows above it.
        hysteresis: how many overflows in a row it takes to back off.
        growth_tracker: how many finite steps in a row there have been since the scale last changed.
        num_overflows: how many overflows in a row there have been; counted up to ``hysteresis``.
    """

    scale: float = TORCH_INIT_SCALE
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = SMALLEST_USEFUL_SCALE
    max_scale: float = LARGEST_SCALE
    hysteresis: int = 1
    growth_tracker: int = 0
    num_overflows: int = 0

    def __post_init__(self) -> None:
        faults = [
            fault for name in ("scale", "min_scale", "max_scale") for fault in scale_faults(name, getattr(self, name))
        ]
        if not self.growth_factor > 1.0:
            faults.append(f"growth_factor is {self.growth_factor}; it must be above 1")
        if not 0.0 < self.backoff_factor < 1.0:
            faults.append(f"backoff_factor is {self.backoff_factor}; it must lie between 0 and 1")
        if self.min_scale > self.max_scale:
            faults.append(f"min_scale {self.min_scale} is above max_scale {self.max_scale}")
        faults += [
            f"{name} is {getattr(self, name)}; it must be at least {least}"
            for name, least in (("growth_interval", 1), ("hysteresis", 1), ("growth_tracker", 0), ("num_overflows", 0))
            if getattr(self, name) < least
        ]
        refuse(faults, "DynamicLossScale")

    def adjust(self, finite: bool) -> Self:  # noqa: FBT001 - the law of every loss scale
        """The state after a step whose gradients were ``finite`` or not."""
        return self._grown() if finite else self._backed_off()

    def _backed_off(self) -> Self:
        num_overflows = min(self.num_overflows + 1, self.hysteresis)
        backs_off = num_overflows == self.hysteresis
        scale = as_fp32(self.scale * self.backoff_factor) if backs_off else self.scale
        return replace(self, scale=self._bounded(scale), growth_tracker=0, num_overflows=num_overflows)

    def _grown(self) -> Self:
        if self.growth_tracker + 1 < self.growth_interval:
            scale, growth_tracker = self.scale, self.growth_tracker + 1
        else:
            grown = as_fp32(self.scale * self.growth_factor)
            scale, growth_tracker = grown if math.isfinite(grown) else self.scale, 0
        return replace(self, scale=self._bounded(scale), growth_tracker=growth_tracker, num_overflows=0)

    def _bounded(self, scale: float) -> float:
        return min(max(scale, self.min_scale), self.max_scale)


LossScale = NoLossScale | StaticLossScale | DynamicLossScale | HeadroomLossScale
"""Law: ``adjust`` gives a new state and leaves the old one as it was; ``decode(encode(state)) == state``."""

_KINDS: Mapping[str, type[LossScale]] = {
    "none": NoLossScale,
    "static": StaticLossScale,
    "dynamic": DynamicLossScale,
    "headroom": HeadroomLossScale,
}

PRESETS: Mapping[str, LossScale] = MappingProxyType(
    {
        "none": NoLossScale(),
        "static": StaticLossScale(),
        "dynamic": DynamicLossScale(),
        "headroom": HeadroomLossScale(),
        "diffusion": DynamicLossScale(scale=2.0**12),
        "rl": DynamicLossScale(scale=2.0**12),
    }
)
"""Loss scales by name. Losses of diffusion and of reinforcement learning have gradients that overflow at 2^16: starting
at 2^12 spares the steps that would be skipped on the way down."""


def get_loss_scale(given: Any) -> LossScale:
    """The loss scale that a user means by a preset's name, a fixed number, or a loss scale itself.

    Raises:
        UsageError: it is none of these; the text lists what is possible.
    """
    if isinstance(given, LossScale):
        return given
    if isinstance(given, str):
        found = PRESETS.get(given)
        if found is None:
            raise UsageError(not_one_of(given, PRESETS, kind="loss scale"))
        return found
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return StaticLossScale(scale=float(given))
    names = ", ".join(f'"{name}"' for name in PRESETS)
    raise UsageError(f"loss_scale is {given!r}; give {names}, a number, or a loss scale such as DynamicLossScale()")


def encode(state: LossScale) -> dict[str, Any]:
    """The state as plain data, for a file."""
    kind = next(name for name, one in _KINDS.items() if type(state) is one)
    return {"kind": kind, **asdict(state)}


def decode(data: Mapping[str, Any]) -> LossScale:
    """The state that ``encode`` made ``data`` from.

    Raises:
        RecordError: the data names no known kind, or its fields are not that kind's.
    """
    fields = dict(data)
    kind = _KINDS.get(str(fields.pop("kind", None)))
    if kind is None:
        raise RecordError(f'a loss scale of kind "{data.get("kind")}" is not known; possible: {", ".join(_KINDS)}')
    try:
        if "statistics" in fields:
            fields["statistics"] = Statistics(**fields["statistics"])
        return kind(**fields)
    except (TypeError, UsageError) as error:
        raise RecordError(f"a {data['kind']} loss scale cannot be read from {fields}: {error}") from error
