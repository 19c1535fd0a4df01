"""The sizes of matrix products and convolutions, from the shapes an operator was called with."""

import math
from typing import Any, NamedTuple

from ampwise.compat.profiler import ProfiledEvent

_FORMATS = {
    "float": "fp32",
    "double": "fp64",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8_e4m3",
    "c10::Float8_e5m2": "fp8_e5m2",
}
_SIZES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
_FIRST_FACTOR = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


class Sizes(NamedTuple):
    """``[m, k] @ [k, n]``, ``batch`` times; a convolution's patches are its ``m``."""

    m: int
    n: int
    k: int
    batch: int
    groups: int = 1
    num_spatial_dims: int = 0
    kernel: int = 1
    """Taps of a convolution's kernel: its ``k`` is that many times the channels."""

    @property
    def padded(self) -> tuple[int, int, int] | None:
        """``m, n, k`` with sizes and channels rounded up to multiples of 8; None where they are already.

        A convolution's ``m`` counts patches, which need no padding.
        """
        m = self.m if self.num_spatial_dims else _up(self.m)
        n, k = _up(self.n), _up(self.k // self.kernel) * self.kernel
        return None if (m, n, k) == (self.m, self.n, self.k) else (m, n, k)


def sizes_of(event: ProfiledEvent) -> Sizes | None:
    """The sizes of the product that an operator computes; None where it is none, or its shapes do not tell."""
    first = _FIRST_FACTOR.get(event.name)
    if first is not None and len(event.shapes) > first + 1:
        left, right = event.shapes[first], event.shapes[first + 1]
        if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
            return None
        return Sizes(m=left[-2], n=right[-1], k=left[-1], batch=math.prod(left[:-2]))
    if event.name == "aten::convolution" and len(event.shapes) > 1:
        return _convolution(event)
    return None


def _convolution(event: ProfiledEvent) -> Sizes | None:
    """Of the forward pass: patches times output channels times input channels and taps."""
    data, weight, values = event.shapes[0], event.shapes[1], event.values
    if len(values) < 9 or values[6] or len(data) != len(weight) or len(data) < 3:
        return None  # a transposed one, or one whose arguments were not recorded
    taps, groups = weight[2:], _number(values[8])
    stride, padding, dilation = (_spread(values[i], len(taps)) for i in (3, 4, 5))
    patches = [
        (size + 2 * pad - dil * (tap - 1) - 1) // step + 1
        for size, tap, step, pad, dil in zip(data[2:], taps, stride, padding, dilation, strict=True)
    ]
    kernel = math.prod(taps)
    return Sizes(
        m=data[0] * math.prod(patches),
        n=weight[0] // groups,
        k=weight[1] * kernel,
        batch=groups,
        groups=groups,
        num_spatial_dims=len(taps),
        kernel=kernel,
    )


def formats_of(event: ProfiledEvent) -> tuple[str, ...]:
    """The formats of an event's floating-point arguments, each once, in their order."""
    return tuple(dict.fromkeys(_FORMATS[dtype] for dtype in event.dtypes if dtype in _FORMATS))


def bytes_of(event: ProfiledEvent) -> int:
    """What an operator reads and writes: its arguments, and a result as large as the largest of them."""
    sizes = [
        math.prod(shape) * _SIZES[_FORMATS[dtype]]
        for shape, dtype in zip(event.shapes, event.dtypes, strict=False)
        if dtype in _FORMATS
    ]
    return sum(sizes) + max(sizes, default=0)


def _up(size: int) -> int:
    return -(-size // 8) * 8


def _number(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 1


def _spread(value: Any, count: int) -> list[int]:
    """A convolution's argument for each of its dimensions: one number stands for all."""
    numbers = [int(one) for one in value] if isinstance(value, (list, tuple)) else [_number(value)]
    return numbers * count if len(numbers) == 1 else numbers[:count]
