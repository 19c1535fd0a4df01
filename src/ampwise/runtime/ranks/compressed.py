"""Sends the gradients of DistributedDataParallel in 16 bits, and says what that costs in precision."""

from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise.compat.distributed import GradBucket, Group, group_of, size_of
from ampwise.formats import find_format, get_format
from ampwise.formats.spec import FloatFormat

_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SUMS: Final = ("fp32", "wire")
_FULL_BYTES: Final = 4


@dataclass(slots=True, kw_only=True)
class Compression:
    """What a model's gradients are sent in, and how much was sent.

    Attributes:
        format: ``bf16`` or ``fp16``.
        sum_in: ``fp32`` or ``wire``.
        num_ranks: over which gradients are averaged.
        sent_bytes: what this rank has handed to the network so far, as a ring sends it.
        full_bytes: what it would have handed over in fp32.
    """

    format: str
    sum_in: str
    num_ranks: int
    group: Group = field(repr=False)
    sent_bytes: float = 0.0
    full_bytes: float = 0.0

    @property
    def relative_error(self) -> float:
        """The bound of an averaged gradient's error, as a part of the mean of the ranks' magnitudes.

        With u the format's unit roundoff (2^-8 of bf16, 2^-11 of fp16): 2u + u^2 where the sum is in fp32, as each
        number is rounded once before and once after it. Summed on the wire, m u / (1 - m u) for the m = n + 1 roundings
        on the way round a ring of n ranks (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1);
        infinite where m u reaches 1. fp32's own rounding, 2^-24 n, is below it.
        """
        u = float(self._spec.eps) / 2
        if self.sum_in == "fp32":
            return 2 * u + u * u
        rounded = (self.num_ranks + 1) * u
        return rounded / (1 - rounded) if rounded < 1 else float("inf")

    @property
    def absolute_error(self) -> float:
        """What is added to it where numbers are too small for the format: half its smallest number a rounding."""
        return (self.num_ranks + 1) * float(self._spec.smallest_subnormal) / 2

    @property
    def _spec(self) -> FloatFormat:
        return get_format(self.format)


def compress_gradients(model: Module, format: str = "bf16", *, sum_in: str = "fp32") -> Compression:  # noqa: A002 - as users say it
    """Send the model's gradients in 16 bits from now on: half the bytes, and an error that the result states.

    Every gradient is divided by the number of ranks in fp32 before it is rounded: what fits once averaged does not
    overflow on the way, and is rounded once, not twice. An infinity stays one, so a loss scale backs off on all ranks.

    Args:
        model: not trained yet; torch keeps what sums its gradients to the end.
        format: ``bf16``, or ``fp16``: eight times as exact, for gradients between 6e-8 and 65504 times the ranks.
        sum_in: ``fp32``: rounded for sending only, so that the error does not grow with the ranks; each part of the
            model waits for its sums. ``wire``: the network's own sum in 16 bits, beside the backward pass, whose error
            grows with every rank.

    Returns:
        The bound of the error, and counts of what was sent.

    Raises:
        UsageError: the model is no DistributedDataParallel, or there is no such format or sum.
    """
    if not isinstance(model, DistributedDataParallel):
        raise UsageError(
            f"compress_gradients() was given a {type(model).__name__}; give the DistributedDataParallel. With "
            "fully_shard, gradients are sent in fsdp_policy(..., reduce=...)"
        )
    known = find_format(format)
    name = known.name if known is not None else format
    for given, possible, kind in ((name, list(_DTYPES), "format to send in"), (sum_in, list(_SUMS), "sum")):
        if given not in possible:
            raise UsageError(not_one_of(given, possible, kind=kind))
    group = group_of(model)
    made = Compression(format=name, sum_in=sum_in, num_ranks=size_of(group), group=group)
    model.register_comm_hook(made, _sum_in_fp32 if sum_in == "fp32" else _sum_on_the_wire)
    return made


def _sum_on_the_wire(made: Compression, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    buffer: Tensor = bucket.buffer()
    low = (buffer / made.num_ranks).to(_DTYPES[made.format])
    _count(made, low, numel=buffer.numel())
    work: Any = dist.all_reduce(low, group=made.group, async_op=True)

    def widened(_: Any) -> Tensor:
        return buffer.copy_(low)

    return work.get_future().then(widened)


def _sum_in_fp32(made: Compression, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Each rank sums its part of all in fp32: 16 bits travel to it and, rounded again, back."""
    buffer: Tensor = bucket.buffer()
    size, num_ranks = buffer.numel(), made.num_ranks
    length = -(-size // num_ranks)
    low = buffer.new_zeros(length * num_ranks, dtype=_DTYPES[made.format])
    low[:size].copy_(buffer / num_ranks)
    _count(made, low, numel=size)
    parts = torch.empty_like(low)
    dist.all_to_all_single(parts, low, group=made.group)
    own = parts.view(num_ranks, length).sum(dim=0, dtype=torch.float32).to(low.dtype)
    work: Any = dist.all_gather_single(low, own, group=made.group, async_op=True)

    def widened(_: Any) -> Tensor:
        return buffer.copy_(low[:size])

    return work.get_future().then(widened)


def _count(made: Compression, low: Tensor, *, numel: int) -> None:
    ring = 2 * (made.num_ranks - 1) / made.num_ranks
    made.sent_bytes += ring * low.nbytes
    made.full_bytes += ring * numel * _FULL_BYTES
