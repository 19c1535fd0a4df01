"""Rounds tensors to any format of the table, bit for bit as the scalar specification (``formats/scalar.py``) does."""

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise.formats.spec import FloatFormat
from ampwise.formats.table import FORMATS, get_format

Mode = Literal["nearest", "stochastic"]
Rounder = Callable[[Tensor], Tensor]
_MODES = ("nearest", "stochastic")
_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
_FORMATS = {dtype: FORMATS[name] for name, dtype in _DTYPES.items()}
_CAST = frozenset({"fp32", "bf16", "fp16", "fp8_e5m2"})
"""Formats to which torch casts fp32 exactly; its cast to fp8_e4m3 turns infinity into 448."""


def round_to(
    tensor: Tensor,
    format: str | FloatFormat,  # noqa: A002 - the field's word
    *,
    mode: Mode = "nearest",
    saturate: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """What ``tensor`` becomes when stored in ``format``: same shape, same dtype, other values.

    Nearest takes the even one of two equally near. Overflow gives infinity, or NaN where the format has no infinity.
    Stochastic rounding takes the upper neighbour with the probability of the distance from the lower one, to within
    2**-24; it never moves a number that the format has, and beyond ``max`` it does what nearest does.

    The gradient passes unchanged (straight through), as if nothing were rounded: the derivative of rounding is 0
    almost everywhere, which would teach nothing.

    Args:
        tensor: Floating-point, and wide enough to hold the format's numbers; float32 holds all but fp64's.
        format: Its name (``fp16``, ``half``), or a row of the table.
        mode: ``nearest`` or ``stochastic``.
        saturate: Finite values beyond ``max`` give ``max``, as conversions to fp8 do on GPUs.
        generator: The random numbers of stochastic rounding; None is torch's own for the device.

    Raises:
        UsageError: the format or mode is unknown, or the tensor cannot hold the format's numbers.
    """
    format_ = format if isinstance(format, FloatFormat) else get_format(format)
    if mode not in _MODES:
        raise UsageError(not_one_of(mode, _MODES, kind="rounding mode"))
    if generator is not None and mode == "nearest":
        raise UsageError('rounding to nearest draws no random numbers; leave generator out, or say mode="stochastic"')
    own = _format_of(tensor)
    if _holds(format_, own):
        return tensor.clone()
    if not _holds(own, format_):
        raise UsageError(
            f"a {str(tensor.dtype).removeprefix('torch.')} tensor cannot hold every {format_.name} number; "
            "give it in float32"
        )

    def rounded(values: Tensor) -> Tensor:
        wide = values if values.dtype is torch.float64 else values.float()
        if mode == "nearest":
            return to_nearest(wide, format_, saturate=saturate).to(values.dtype)
        return _stochastic(wide, format_, saturate=saturate, generator=generator).to(values.dtype)

    return straight_through(tensor, rounded)


def straight_through(tensor: Tensor, change: Rounder) -> Tensor:
    """``change(tensor)``, whose gradient is taken for its argument's."""
    return cast("Tensor", _StraightThrough.apply(tensor, change))


def to_nearest(wide: Tensor, format_: FloatFormat, *, saturate: bool = False) -> Tensor:
    """Round a float32 or float64 tensor to the format's nearest numbers; for kernels, below autograd."""
    if wide.dtype is torch.float32 and not saturate:
        if format_.name in _CAST:
            return wide.to(_DTYPES[format_.name]).to(wide.dtype)
        if format_.name == "tf32":
            return _drop_bits(wide, 23 - format_.mantissa_bits)
    step = _steps(wide, format_)
    return _overflow(torch.round(wide / step) * step, wide, format_, saturate=saturate)


def _stochastic(wide: Tensor, format_: FloatFormat, *, saturate: bool, generator: torch.Generator | None) -> Tensor:
    if format_.name == "bf16" and wide.dtype is torch.float32 and not saturate:
        return _stochastic_bf16(wide, generator)
    step = _steps(wide, format_)
    scaled = wide.abs() / step
    below = scaled.floor()
    chance = torch.rand(wide.shape, generator=generator, device=wide.device, dtype=torch.float32)
    up = (chance < scaled - below).to(wide.dtype)
    rounded = torch.copysign((below + up) * step, wide)
    # which of the two neighbours of max is taken is a matter of the range, not of chance
    rounded = torch.where(wide.abs() > format_.max, to_nearest(wide, format_), rounded)
    return _overflow(rounded, wide, format_, saturate=saturate)


def _stochastic_bf16(wide: Tensor, generator: torch.Generator | None) -> Tensor:
    """bf16 is fp32 without its last 16 bits: a random number below 2**16 added to them carries by the right chance."""
    chance = torch.randint(1 << 16, wide.shape, generator=generator, device=wide.device, dtype=torch.int32)
    rounded = (chance.add_(wide.view(torch.int32)) & -(1 << 16)).view(torch.float32)
    # neither the range nor a NaN is a matter of chance
    beyond = torch.copysign(wide.to(torch.bfloat16).to(torch.float32), wide)
    return torch.where(wide.abs() <= FORMATS["bf16"].max, rounded, beyond)


def _steps(wide: Tensor, format_: FloatFormat) -> Tensor:
    """The distance of the format's numbers around each value: a power of two, so that dividing by it is exact."""
    _, exponent = torch.frexp(wide)
    exponent = exponent.clamp(min=format_.min_exponent + 1, max=_max_exponent(format_))
    return torch.ldexp(torch.ones_like(wide), exponent - 1 - format_.mantissa_bits)


def _max_exponent(format_: FloatFormat) -> int:
    return (format_.max_code >> format_.mantissa_bits) - format_.bias + 1


def _overflow(rounded: Tensor, wide: Tensor, format_: FloatFormat, *, saturate: bool) -> Tensor:
    """Values beyond ``max`` as the format has them; zero keeps its sign."""
    limit = format_.max
    if saturate:
        rounded = torch.where(wide.isfinite(), rounded.clamp(-limit, limit), wide)
    beyond = float("inf") if format_.has_inf else float("nan")
    rounded = torch.where(rounded.abs() > limit, beyond, rounded)
    return torch.copysign(rounded, wide)


def _drop_bits(wide: Tensor, num_bits: int) -> Tensor:
    """Round fp32 to nearest even with ``num_bits`` fewer mantissa bits and the same exponents."""
    bits = wide.contiguous().view(torch.int32)
    rounded = bits >> num_bits
    rounded = rounded.bitwise_and_(1).add_(bits).add_((1 << num_bits - 1) - 1)
    rounded = rounded.bitwise_and_(-1 << num_bits).view(torch.float32)
    # a carry out of a NaN's mantissa would make a number of it
    return torch.where(wide.isnan(), wide, rounded)


def _format_of(tensor: Tensor) -> FloatFormat:
    found = _FORMATS.get(tensor.dtype)
    if found is None:
        name = str(tensor.dtype).removeprefix("torch.")
        raise UsageError(f"a tensor of {name} has no floating-point format to round from; give it in float32")
    return found


def _holds(outer: FloatFormat, inner: FloatFormat) -> bool:
    """Whether every number of ``inner`` is one of ``outer``."""
    return (
        outer.mantissa_bits >= inner.mantissa_bits
        and outer.max >= inner.max
        and outer.smallest_subnormal <= inner.smallest_subnormal
        and outer.has_inf >= inner.has_inf
    )


class _StraightThrough(torch.autograd.Function):
    """Changes values in the forward pass only."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, change: Rounder) -> Tensor:  # noqa: ARG004 - torch's name
        return change(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004 - torch's name
        return gradients[0], None
