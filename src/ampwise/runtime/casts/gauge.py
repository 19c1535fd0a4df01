"""Notes how large the numbers are that modules give or are given, on their device, and waits for nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from ampwise.compat.distributed import local_of
from ampwise.interpose.internal import internal
from ampwise.observe.statistics import amax, sample


class Gauge:
    """What the results of one or several modules were since it was last emptied.

    Law: results stay as they are; nothing waits for a device or branches on data. In compiled code it is a part of the
    graph.

    Args:
        limit: Elements of this magnitude or more are counted, and those that are not finite.
        device: Where the results are.

    Attributes:
        numbers: fp32 of shape (3,): the largest magnitude of all elements (not finite if one is not); of a sample of at
            most 4096 elements a result, how many were counted, and how many there were.
    """

    def __init__(self, limit: float, device: torch.device) -> None:
        self._limit = limit
        self.numbers = torch.zeros(3, device=device)

    def take(self, result: Any) -> None:
        """Take in what a module gives; evaluation is left out."""
        _take_in(self._take, result)

    def empty(self) -> None:
        """Begin a step."""
        self.numbers.zero_()

    def _take(self, result: Any) -> None:
        for tensor in _floating(result):
            values = tensor.detach()
            few = sample(values).abs()
            is_held = few < self._limit  # false for NaN
            peak = torch.maximum(self.numbers[0], amax(values).to(self.numbers.device, torch.float32))
            num_beyond = (few.numel() - is_held.sum()).to(self.numbers.device, torch.float32)
            self.numbers.copy_(torch.stack([peak, self.numbers[1] + num_beyond, self.numbers[2] + few.numel()]))


class UnderflowGauge:
    """Which share of the numbers that modules were given is lost in a format with one scale a tensor.

    The scale makes a tensor's largest magnitude the format's, so what is too small beside it becomes zero.

    Law: as for ``Gauge``.

    Args:
        reach: The format's largest number over half of its smallest: an element is lost if the tensor's largest
            magnitude is that many times its own.
        device: Where the modules are.

    Attributes:
        numbers: fp32 of shape (1,): the largest share of any tensor since it was last emptied, of the elements that are
            not zero before; of a sample of at most 4096. A tensor that is not finite is left out.
    """

    def __init__(self, reach: float, device: torch.device) -> None:
        self._reach = reach
        self.numbers = torch.zeros(1, device=device)

    def take(self, given: Any) -> None:
        """Take in what a module is given; evaluation is left out."""
        _take_in(self._take, given)

    def empty(self) -> None:
        """Begin a step."""
        self.numbers.zero_()

    def _take(self, given: Any) -> None:
        for tensor in _floating(given):
            values = tensor.detach()
            few, peak = sample(values).abs().float(), amax(values).float()  # not every device has fp64
            is_lost = (few > 0) & (few <= peak / self._reach) & peak.isfinite()
            share = is_lost.sum() / (few > 0).sum().clamp(min=1)
            self.numbers.copy_(torch.maximum(self.numbers, share.to(self.numbers.device, torch.float32)))


def _take_in(take: Callable[[Any], None], value: Any) -> None:
    if not torch.is_grad_enabled():
        return
    if is_dynamo_compiling():
        take(value)
    else:
        with internal():
            take(value)


def _floating(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and not value.is_sparse and value.numel():
            yield local_of(value)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _floating(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _floating(one)
