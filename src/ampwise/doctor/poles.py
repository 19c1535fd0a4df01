"""Operators whose slope is infinite or undefined somewhere, and what to write in their place."""

from typing import Final

from ampwise.doctor.causes import holds_zero
from ampwise.records.nonfinite import Origin

POLES: Final = {
    "aten.sqrt": "the root's slope at 0 is infinite: write (x + eps).sqrt()",
    "aten.linalg_vector_norm": "a norm's slope at 0 is undefined: write (x.square().sum(-1) + eps).sqrt()",
    "aten.norm": "a norm's slope at 0 is undefined: write (x.square().sum(-1) + eps).sqrt()",
    "aten.std": "a deviation's slope at 0 is infinite: write (x.var(-1) + eps).sqrt()",
    "aten.pow": "a power below 1 has an infinite slope at 0: clamp before it",
    "aten.log": "the logarithm's slope at 0 is infinite: clamp before it",
    "aten.log1p": "the slope of log1p at -1 is infinite: clamp before it",
    "aten.acos": "its slope at 1 and -1 is infinite: clamp to 1 - eps",
    "aten.asin": "its slope at 1 and -1 is infinite: clamp to 1 - eps",
    "aten.atan2": "its slope at (0, 0) is undefined: add an epsilon",
    "aten.div": "the slope of a division by 0 is infinite: clamp the divisor",
}


def is_pole(origin: Origin) -> bool:
    """Whether a gradient was divided by zero at such a place: no loss scale has a part in it."""
    return origin.forward_op in POLES and any(map(holds_zero, origin.inputs))
