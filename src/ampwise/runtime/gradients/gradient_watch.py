"""Measures the scaled gradients of a step on their device: the largest, and now and then what share has vanished."""

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise.interpose.internal import internal
from ampwise.observe.statistics import largest, sample
from ampwise.runtime.gradients.found_inf import gradients

SAMPLE_INTERVAL = 50
"""A step in so many has its gradients sampled."""
SAMPLE_SIZE = 1024
"""Elements sampled of each gradient."""
_SMALLEST_NORMAL = 2.0**-14
"""fp16's."""


class GradientWatch:
    """What one step's gradients were while they were still scaled.

    Law: nothing waits for a device; gradients stay as they are.

    Args:
        wants_amax: take the largest magnitude of every step (a pass over the gradients: 0.1 ns an element on a CPU).
    """

    def __init__(self, *, wants_amax: bool) -> None:
        self._wants_amax = wants_amax
        self.forget()

    def forget(self) -> None:
        """Begin a step."""
        self._seen: set[int] = set()
        self._amax: Tensor | None = None
        self._counts: Tensor | None = None

    @torch.no_grad()
    def look(self, optimizer: Optimizer, *, device: torch.device, samples: bool) -> None:
        """Measure the optimizer's gradients, unless that is done in this step.

        Args:
            optimizer: its gradients are as the backward pass made them.
            device: where the results are kept.
            samples: count what share is zero or subnormal, too.
        """
        if id(optimizer) in self._seen or not (self._wants_amax or samples):
            return
        self._seen.add(id(optimizer))
        with internal():
            for _, grads in gradients(optimizer, allow_fp16=True):
                if self._wants_amax:
                    found = largest(grads).to(device, torch.float32, non_blocking=True)
                    self._amax = found if self._amax is None else torch.maximum(self._amax, found)
                if samples:
                    counts = _counts(grads).to(device, non_blocking=True)
                    self._counts = counts if self._counts is None else self._counts + counts

    def amax(self, scale: Tensor) -> Tensor | None:
        """The magnitude of the largest unscaled gradient, 0-dim fp32; None if nothing was measured."""
        return None if self._amax is None else self._amax / scale

    def shares(self) -> tuple[Tensor, Tensor] | None:
        """What share of the sampled gradients was zero, and what share subnormal in fp16; None without a sample."""
        if self._counts is None:
            return None
        zero, subnormal, total = (self._counts[place] for place in range(3))
        return zero / total, subnormal / total


def _counts(grads: list[Tensor]) -> Tensor:
    """How many of the sampled elements are zero, subnormal in fp16, and how many there are; fp32."""
    magnitudes = torch.cat([sample(grad, limit=SAMPLE_SIZE) for grad in grads]).abs()
    zero = magnitudes == 0
    subnormal = ~zero & (magnitudes < _SMALLEST_NORMAL)
    total = torch.full((), float(magnitudes.numel()), device=magnitudes.device)
    return torch.stack([zero.sum(), subnormal.sum(), total]).float()
