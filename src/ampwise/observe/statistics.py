"""Statistics of tensors, computed where the tensors are: nothing here waits for a device or reads a number off it.

Law: no function changes its argument, needs a gradient, branches on data or synchronises. Call them under
``interpose.internal.internal()``, so that watchers of operators do not see them.

Times are of one CPU core, tensors of a million elements; where none is given for a GPU, none was measured.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ampwise.records.numerics import INF_BIN, NUM_BINS

_DOUBLE_LOWEST = (1023 - 127) << 3
"""The first bin of fp64's exponents that is one of fp32's."""
_DOUBLE_NORMAL = (1023 - 126) << 3
_DOUBLE_INF = 2047 << 3


def amax(tensor: Tensor) -> Tensor:
    """The largest magnitude; infinite or NaN if an element is, so it also says whether all are finite.

    Cost: one pass, 0.1 ns an element, a tenth of ``isfinite().all()``.

    Args:
        tensor: floating or complex (the larger of the parts), dense, any shape and layout.

    Returns:
        0-dim, on the tensor's device: fp64 for fp64, else fp32, exact. 0 for a tensor without elements.
    """
    low, high = extremes(tensor)
    return torch.maximum(-low, high).to(torch.promote_types(low.dtype, torch.float32))


def extremes(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest number, 0-dim; both NaN if an element is, and 0 for a tensor without elements.

    As for ``amax``, which is the larger of their magnitudes; those of many tensors can be compared at once.
    """
    values = _real(tensor)
    if not values.numel():
        return values.new_zeros(()), values.new_zeros(())
    low, high = torch.aminmax(values)
    return low, high


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """The largest magnitude in all of the tensors together; infinite or NaN if an element is.

    Cost: a pass over each, and two kernels a tensor.

    Args:
        tensors: at least one; as in ``amax``, all on one device.

    Returns:
        0-dim, fp64 if one of them is fp64, else fp32.
    """
    each = [amax(one) for one in tensors]
    dtype = torch.float64 if any(one.dtype is torch.float64 for one in each) else torch.float32
    return torch.stack([one.to(dtype) for one in each]).amax()


def magnitude_counts(tensor: Tensor) -> Tensor:
    """How many elements lie in each eighth of a binade; ``MagnitudeHistogram.from_counts`` reads it.

    Exact for fp32, bf16 and fp16, their subnormals too; only signalling NaN, which no arithmetic makes, may count as
    infinite. fp64 numbers below fp32's smallest normal one count in the first bin, those above its largest in the last.

    Cost: fp32 1.3, bf16 0.8, fp16 1.8, fp64 3.6 ns an element, and 0.5 for the zeros; memory for three int32 (fp64:
    int64) copies of the tensor while it runs, so give ``sample(tensor)`` where it is large. On CUDA ``histc`` counts
    the bins: ``bincount`` there would wait for the device.

    Args:
        tensor: floating or complex (real and imaginary parts are counted alike), dense, any shape and layout.

    Returns:
        int64 of shape (2049,), on the tensor's device: 2048 bins of fp32's exponent and its first three mantissa bits
        (255 * 8 is infinity, those above are NaN), then how many are zero, which the first bin leaves out.
    """
    values = _real(tensor).reshape(-1)
    places = _places(values)
    if values.device.type == "cpu":
        counts = torch.bincount(places, minlength=NUM_BINS)
    else:  # of whole numbers: with floats its counts would be fp32 and stop at 2^24
        counts = torch.histc(places, bins=NUM_BINS, min=0, max=NUM_BINS).to(torch.int64)
    num_zeros = (values == 0).sum()
    counts[0] -= num_zeros
    return torch.cat([counts, num_zeros.reshape(1)])


def magnitude_counts_of_each(tensors: Sequence[Tensor]) -> Tensor:
    """The ``magnitude_counts`` of many small tensors at once, for a tenth of the time.

    Args:
        tensors: at least one; as in ``magnitude_counts`` but neither fp64 nor complex, all on one device.

    Returns:
        int64 of shape (len(tensors), 2049), on their device.
    """
    flat = [_real(one).reshape(-1) for one in tensors]
    device, sizes = flat[0].device, [one.numel() for one in flat]
    values = torch.cat([one if one.dtype is torch.float32 else one.float() for one in flat])
    places = torch.where(values == 0, NUM_BINS, _places(values))
    num_places = len(flat) * (NUM_BINS + 1)
    if device.type == "cpu":
        for number, own in enumerate(places.split(sizes)):  # a tenth of the time of repeating each table's first place
            own.add_(number * (NUM_BINS + 1))
        counts = torch.bincount(places, minlength=num_places)
    else:
        firsts = torch.arange(0, num_places, NUM_BINS + 1).to(device, non_blocking=True)
        sizes_there = torch.tensor(sizes).to(device, non_blocking=True)
        places = places + torch.repeat_interleave(firsts, sizes_there, output_size=sum(sizes))
        counts = torch.zeros(num_places, dtype=torch.int64, device=device).scatter_add_(
            0, places, torch.ones_like(places)
        )
    return counts.view(len(flat), NUM_BINS + 1)


def sample(tensor: Tensor, *, limit: int = 4096) -> Tensor:
    """At most ``limit`` elements, evenly spread, of shape (n,); the tensor itself, flat, if it has no more.

    Cost: nothing for a contiguous tensor, whose memory it shares; another is copied whole.
    """
    flat = tensor.detach().reshape(-1)
    return flat if flat.numel() <= limit else flat[:: -(-flat.numel() // limit)]


def _real(tensor: Tensor) -> Tensor:
    """The numbers as a floating tensor of at least 16 bits that needs no gradient."""
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    elif values.dtype.itemsize == 1:  # fp8 has no kernels
        values = values.float()
    return values.resolve_neg()


def _places(values: Tensor) -> Tensor:
    """The bin of each number: exponent and first mantissa bits as fp32 has them; int32, int16 or int64."""
    match values.dtype:
        case torch.float64:
            bits = (values.view(torch.int64) >> 49) & 0x3FFF
            finite = torch.where(bits < _DOUBLE_NORMAL, 0, bits - _DOUBLE_LOWEST).clamp(max=INF_BIN - 1)
            places = torch.where(bits >= _DOUBLE_INF, bits - (_DOUBLE_INF - INF_BIN), finite)
        case torch.bfloat16:
            places = (values.view(torch.int16) >> 4) & 0x7FF
        case _:
            places = (values.float().view(torch.int32) >> 20) & 0x7FF
    return places if places.device.type == "cpu" else places.to(torch.int32)
