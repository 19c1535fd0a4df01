"""The numbers a loss scale may be."""

import ctypes
import math

from ampwise._base.errors import UsageError

TORCH_INIT_SCALE = 2.0**16
SMALLEST_USEFUL_SCALE = 2.0**-126
"""The smallest normal fp32 number: below it 1/scale is not exact, and soon infinite."""
LARGEST_SCALE = (2.0 - 2.0**-23) * 2.0**127
"""The largest fp32 number: torch lets the scale grow as far."""


def as_fp32(value: float) -> float:
    """``value`` rounded to the nearest fp32 number; infinite above the largest."""
    return ctypes.c_float(value).value


def scale_faults(name: str, scale: float) -> list[str]:
    """Why the field ``name`` cannot be ``scale``; empty if it can."""
    valid = scale > 0.0 and math.isfinite(as_fp32(scale))
    return [] if valid else [f"{name} is {scale}; it must be a positive finite fp32 number, such as 65536.0"]


def refuse(faults: list[str], owner: str) -> None:
    """Raise one UsageError that names every fault, if there is one."""
    if faults:
        raise UsageError(f"{owner}: " + "; ".join(faults))
