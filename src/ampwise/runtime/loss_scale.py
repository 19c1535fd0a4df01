"""Says what the loss is multiplied by, and what the next step's factor is, as values that know no device."""

import ctypes
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from ampwise._base.errors import RecordError, UsageError

TORCH_INIT_SCALE = 2.0**16
SMALLEST_USEFUL_SCALE = 2.0**-126
"""The smallest normal fp32 number: below it 1/scale is not exact, and soon infinite."""
LARGEST_SCALE = (2.0 - 2.0**-23) * 2.0**127
"""The largest fp32 number: torch lets the scale grow as far."""


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
        _refuse([*_scale_faults("scale", self.scale)], "StaticLossScale")

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
            fault for name in ("scale", "min_scale", "max_scale") for fault in _scale_faults(name, getattr(self, name))
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
        _refuse(faults, "DynamicLossScale")

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


LossScale = NoLossScale | StaticLossScale | DynamicLossScale
"""Law: ``adjust`` gives a new state and leaves the old one as it was; ``decode(encode(state)) == state``."""

_KINDS: Mapping[str, type[LossScale]] = {"none": NoLossScale, "static": StaticLossScale, "dynamic": DynamicLossScale}


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
        return kind(**fields)
    except (TypeError, UsageError) as error:
        raise RecordError(f"a {data['kind']} loss scale cannot be read from {fields}: {error}") from error


def as_fp32(value: float) -> float:
    """``value`` rounded to the nearest fp32 number; infinite above the largest."""
    return ctypes.c_float(value).value


def _scale_faults(name: str, scale: float) -> list[str]:
    valid = scale > 0.0 and math.isfinite(as_fp32(scale))
    return [] if valid else [f"{name} is {scale}; it must be a positive finite fp32 number, such as 65536.0"]


def _refuse(faults: list[str], owner: str) -> None:
    if faults:
        raise UsageError(f"{owner}: " + "; ".join(faults))
