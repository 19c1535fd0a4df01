"""Why an operator made infinities or NaN of finite numbers, read off its name, its inputs and its result."""

from enum import StrEnum
from typing import Final

from ampwise.doctor.origins import format_of, limits_of
from ampwise.records.nonfinite import NonFiniteKind, Operand, Origin
from ampwise.records.site import Phase

NARROW: Final = frozenset({"fp16", "fp8_e4m3", "fp8_e5m2"})
"""Formats whose range is narrower than fp32's."""
_LOGS: Final = frozenset({"aten.log", "aten.log2", "aten.log10", "aten.logit"})
_DIVISIONS: Final = frozenset({"aten.div", "aten.div_", "aten.true_divide", "aten.reciprocal", "aten.rsqrt"})
_DOMAINS: Final = frozenset({"aten.sqrt", "aten.rsqrt", "aten.acos", "aten.asin", "aten.atanh", "aten.acosh"})
_SUMS: Final = frozenset({"aten.add", "aten.add_", "aten.sub", "aten.sub_", "aten.mul", "aten.mul_", "aten.baddbmm"})
_NEAR_END: Final = 0.9
"""Of a format's range: what lies beyond is a mask's constant."""


class Cause(StrEnum):
    """What went wrong in an operator. Each origin has exactly one, so that one rule alone speaks of it."""

    OVERFLOW = "overflow"
    """The result is larger than a narrow format holds."""
    HIDDEN = "hidden"
    """The result is larger than its format holds, and a later operator made a finite number of the infinity."""
    INVALID = "invalid"
    """A logarithm of zero, a division by zero, the root of a negative number, the mean of nothing."""
    MASK = "mask"
    """A mask's constant, added to or multiplied with a score, leaves the format's range."""
    EMPTY_ROW = "empty row"
    """A softmax over a row of which a mask left nothing."""
    WIDE = "wide"
    """The result is larger than fp32's range, which bf16 shares."""
    UNCLEAR = "unclear"
    """NaN within one operator, of finite inputs."""
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


def cause_of(origin: Origin) -> Cause:
    """Why the operator made infinities or NaN."""
    match origin.site.phase:
        case Phase.BACKWARD:
            return Cause.BACKWARD
        case Phase.OPTIMIZER:
            return Cause.OPTIMIZER
        case Phase.FORWARD | Phase.OTHER:
            if "_amp_" in (origin.site.op or ""):
                return Cause.BACKWARD  # the scaler divides gradients by the scale
            return _of_operands(origin) or _of_range(origin)


def _of_operands(origin: Origin) -> Cause | None:
    """What the operator and its inputs tell, whatever the format."""
    if _is_empty_row(origin):
        return Cause.EMPTY_ROW
    if is_of_nothing(origin) or is_invalid(origin):
        return Cause.INVALID
    return Cause.MASK if _is_mask(origin) else None


def _of_range(origin: Origin) -> Cause:
    if origin.kind is NonFiniteKind.NAN:
        return Cause.UNCLEAR
    if origin.vanished is not None:
        return Cause.HIDDEN
    return Cause.OVERFLOW if format_of(origin) in NARROW else Cause.WIDE


def is_invalid(origin: Origin) -> bool:
    """Whether the operator was given what it has no finite result for, whatever the format."""
    op, given = origin.site.op or "", origin.inputs
    last = given[-1] if given else None
    if last is None or last.minimum is None or last.maximum is None:
        return False
    if op in _LOGS:
        return last.minimum <= 0.0 or (op == "aten.logit" and last.maximum >= 1.0)
    if op == "aten.log1p":
        return last.minimum <= -1.0
    if op in _DIVISIONS:
        return last.minimum <= 0.0 <= last.maximum or (op == "aten.rsqrt" and last.minimum < 0.0)
    if op == "aten.pow":
        return _is_invalid_power(origin, last)
    return op in _DOMAINS and (last.minimum < 0.0 or op not in {"aten.sqrt", "aten.rsqrt"})


def is_of_nothing(origin: Origin) -> bool:
    """Whether it is a mean over no elements, or over targets that are all ignored: 0 / 0."""
    if origin.kind is not NonFiniteKind.NAN or not origin.inputs:
        return False
    return 0 in origin.inputs[0].shape or ignores_every_target(origin)


def ignores_every_target(origin: Origin) -> bool:
    """Whether a loss of finite log-probabilities is NaN: it divides by the number of targets that count."""
    return "nll_loss" in (origin.site.op or "") and all(one.minimum is not None for one in origin.inputs[:1])


def holds_zero(one: Operand) -> bool:
    """Whether zero is in the range of its numbers."""
    return one.minimum is not None and one.maximum is not None and one.minimum <= 0.0 <= one.maximum


def _is_invalid_power(origin: Origin, base: Operand) -> bool:
    exponent = origin.scalars[-1] if origin.scalars else None
    if origin.kind is NonFiniteKind.NAN:
        return (base.minimum or 0.0) < 0.0
    return exponent is not None and exponent < 0.0 and holds_zero(base)


def _is_mask(origin: Origin) -> bool:
    """Only -inf came of it, where something near the end of the format went in."""
    limits, output = limits_of(origin), origin.output
    if limits is None or output is None or origin.site.op not in _SUMS:
        return False
    if not output.num_infinite or output.num_negative_infinite != output.num_infinite:
        return False
    end = -_NEAR_END * limits.max
    lowest = [one.minimum for one in origin.inputs if one.minimum is not None]
    return any(one <= end for one in (*lowest, *origin.scalars))


def _is_empty_row(origin: Origin) -> bool:
    return ("softmax" in (origin.site.op or "") or "attention" in (origin.site.op or "")) and any(
        one.num_negative_infinite for one in origin.inputs
    )
