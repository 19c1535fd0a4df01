"""Unscales, clips and steps part by part, so that every gradient is read from memory twice and not five times."""

import logging
import math
import warnings
from collections.abc import Sequence
from ctypes import c_float
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise._base.errors import UsageError
from ampwise.compat.fused import (
    fits_fused,
    fuse,
    is_divisible,
    is_fused_on_cpu,
    make_capturable,
    mark_stepped,
    unfuse,
)
from ampwise.compat.fused_step import begin_step, multiply_gradients_
from ampwise.runtime.gradients.norms import norms_of
from ampwise.runtime.scaling.loss_scale import SMALLEST_USEFUL_SCALE

PART_BYTES = 2 << 20
"""Gradients that are scaled and then stepped while they are still in the processor's cache."""
SMALLEST_SURE_NORM = 2.0**-30
"""Below it the squares of the unscaled numbers may be rounded, so the norm is taken of those."""
LARGEST_SURE_NORM = 2.0**60
"""Above it the squares of the unscaled numbers may be infinite where those of the scaled ones are not."""

_LOG = logging.getLogger("ampwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedUpdate:
    """One update whose gradients are finite and whose total norm is known; nothing is changed yet.

    Law: ``step`` on each optimizer gives the parameters, the state and the gradients that torch's ``unscale_``,
    ``clip_grad_norm_`` and fused ``step`` give, bit for bit, as long as no unscaled gradient is so small that fp32
    holds it as a subnormal (below 1.2e-38): those may differ in their last bit.

    Attributes:
        norm: of all unscaled gradients together, 0-dim.
        factor: what every gradient is multiplied by; None where nothing is clipped.
        grad_scale: what the kernel divides the gradients by where nothing is clipped; None is 1.
    """

    norm: Tensor
    factor: Tensor | None = None
    grad_scale: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def plan(
        cls, optimizers: Sequence[Optimizer], params: Sequence[Tensor], *, scale: float, max_norm: float
    ) -> "ClippedUpdate | None":
        """The update of these optimizers' parameters; None where it has to be done in torch's own sequence.

        That is where an optimizer's step cannot be divided, a gradient is not finite, or ``scale`` is no power of two,
        so that dividing by it rounds.

        Args:
            optimizers: those that step.
            params: the parameters to clip, in the order of torch's ``clip_grad_norm_``; all on the CPU, where it
                costs nothing to look at a number.
            scale: what the loss was multiplied by.
            max_norm: what the unscaled gradients are clipped to.
        """
        grads = [grad for param in params if (grad := param.grad) is not None]
        is_exact = math.frexp(scale)[0] == 0.5 and math.isfinite(1.0 / scale)
        if not is_exact or not all(map(is_divisible, optimizers)):
            return None
        norm = _total_norm(grads, 1.0 / scale)
        value = norm.item()
        if not value < LARGEST_SURE_NORM:
            return None
        clip = _clip_coefficient(value, max_norm)
        if clip == 1.0:
            return cls(norm=norm, grad_scale=None if scale == 1.0 else torch.tensor(scale))
        factor = clip / scale
        return None if factor < SMALLEST_USEFUL_SCALE else cls(norm=norm, factor=torch.tensor(factor))

    @torch.no_grad()
    def step(self, optimizer: Optimizer) -> None:
        """Scale the optimizer's gradients and step it."""
        for group in begin_step(optimizer):
            if self.factor is None:
                group.step(group.rows, grad_scale=self.grad_scale)
                continue
            for part in group.parts(num_bytes=PART_BYTES):
                multiply_gradients_(part, self.factor)
                group.step(part)
        mark_stepped(optimizer)


def clip_(params: Sequence[Tensor], *, max_norm: float | None, max_value: float | None) -> Tensor | None:
    """Clip unscaled gradients as torch does, as far as asked for; returns their norm if that is clipped."""
    if max_value is not None:
        torch.nn.utils.clip_grad_value_(params, max_value)
    return None if max_norm is None else torch.nn.utils.clip_grad_norm_(params, max_norm)


def unfuse_misfits(optimizers: Sequence[Optimizer], fused: tuple[Optimizer, ...]) -> tuple[Optimizer, ...]:
    """Give optimizers back to torch's default where the fused kernels cannot take their gradients or state.

    Args:
        optimizers: those that step.
        fused: those of them for which ``choose_fused`` chose; of the others this warns.

    Returns:
        Which of ``fused`` still are.
    """
    misfits = [one for one in optimizers if is_fused_on_cpu(one) or any(one is mine for mine in fused)]
    misfits = [one for one in misfits if not fits_fused(one)]
    for one in misfits:
        unfuse(one)
        if not any(one is mine for mine in fused):
            warnings.warn(
                f"{type(one).__name__}(fused=True) is stepped unfused from here on: a gradient or momentum lies in "
                "memory otherwise than its parameter, and torch's fused kernel would give wrong parameters",
                stacklevel=5,
            )
    return tuple(one for one in fused if not any(one is misfit for misfit in misfits)) if misfits else fused


def ready_for_capture(optimizers: Sequence[Optimizer], *, skips: bool) -> None:
    """Let CUDA graphs replay these optimizers' steps.

    Raises:
        UsageError: one of them cannot be captured; the text says what can.
    """
    faults = [fault for one in optimizers if (fault := make_capturable(one, skips=skips))]
    if faults:
        raise UsageError(f"capture=True: {'; '.join(faults)}")


def choose_fused(optimizers: Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    """Let torch's fused kernels step the optimizers that leave the choice to torch, and log it; returns those."""
    chosen = tuple(one for one in optimizers if fuse(one))
    for one in chosen:
        name = type(one).__name__
        _LOG.info(
            "%s is stepped by torch's fused kernel; make it with foreach=True or fused=False to keep torch's", name
        )
    return chosen


def _total_norm(grads: Sequence[Tensor], inv_scale: float) -> Tensor:
    """The norm of the gradients' norms, each times ``inv_scale``, as torch takes it of unscaled gradients."""
    norms = norms_of(grads)
    if inv_scale != 1.0:
        norms *= inv_scale
        if norms.min().item() < SMALLEST_SURE_NORM:
            small = (norms > 0) & (norms < SMALLEST_SURE_NORM)
            for index in small.nonzero().flatten().tolist():
                norms[index] = torch.linalg.vector_norm(grads[index] * inv_scale)
    return torch.linalg.vector_norm(norms)


def _clip_coefficient(norm: float, max_norm: float) -> float:
    """What ``clip_grad_norm_`` multiplies by, ``max_norm / (norm + 1e-6)``, rounded where torch's operators round.

    A double holds the exact sum or product of two fp32 numbers, or enough of it that rounding twice is rounding once.
    """
    reciprocal = _fp32(1.0 / _fp32(norm + _fp32(1e-6)))  # torch divides a number by a tensor so
    return min(_fp32(reciprocal * _fp32(max_norm)), 1.0)


def _fp32(number: float) -> float:
    return c_float(number).value
