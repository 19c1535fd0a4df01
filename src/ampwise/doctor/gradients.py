"""How large the gradients of a run are, for the rules on loss scales."""

import math
from dataclasses import dataclass

from ampwise.doctor.case import Case
from ampwise.formats.table import find_format
from ampwise.records.numerics import TensorKind, TensorStatistics, range_verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallness:
    """How many gradients held in fp16 are too small for it, with the loss scale they had."""

    num_tensors: int
    num_zeros: int
    num_nonzero: int
    num_subnormal: int
    is_all_zero: bool
    """No gradient of the run, in whatever format it is held, had a number that is not zero."""
    worst: tuple[str, float]
    """The module with the largest share of those below the normal numbers, and that share."""

    @property
    def subnormal_share(self) -> float:
        """Of the gradients that are not zero."""
        return self.num_subnormal / self.num_nonzero if self.num_nonzero else 0.0


def smallness(case: Case) -> Smallness | None:
    """How small the gradients in fp16 are; None where none was measured."""
    numerics, fp16 = case.run.numerics, find_format("fp16")
    if numerics is None or fp16 is None:
        return None
    tensors = [
        one for one in numerics.tensors if _is_gradient(one) and one.dtype == "fp16" and not one.num_non_finite_steps
    ]
    if not tensors:
        return None
    shares = [range_verdict(one.histogram, fp16).subnormal for one in tensors]
    both = list(zip(tensors, shares, strict=True))
    worst, share = max(both, key=lambda pair: pair[1])
    return Smallness(
        num_tensors=len(tensors),
        num_zeros=sum(one.histogram.num_zeros for one in tensors),
        num_nonzero=sum(one.histogram.num_nonzero for one in tensors),
        num_subnormal=sum(round(subnormal * one.histogram.num_nonzero) for one, subnormal in both),
        is_all_zero=not any(one.histogram.num_nonzero for one in numerics.tensors if _is_gradient(one)),
        worst=(worst.module, share),
    )


def largest_gradients(case: Case) -> tuple[tuple[int, float], ...]:
    """Of each sampled step, the largest magnitude among all weights' gradients, the loss scale taken out."""
    numerics = case.run.numerics
    if numerics is None:
        return ()
    found: list[tuple[int, float]] = []
    for place, step in enumerate(numerics.steps):
        sizes = [
            amax / ((step.scale or 1.0) if one.is_scaled else 1.0)
            for one in numerics.tensors
            if one.kind is TensorKind.WEIGHT_GRADIENT and place < len(one.amax)
            for amax in (one.amax[place],)
            if amax is not None and math.isfinite(amax)
        ]
        if sizes:
            found.append((step.index, max(sizes)))
    return tuple(found)


def _is_gradient(tensor: TensorStatistics) -> bool:
    return tensor.kind in {TensorKind.GRADIENT, TensorKind.WEIGHT_GRADIENT}
