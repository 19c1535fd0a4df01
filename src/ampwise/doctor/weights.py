"""Weights that a format cannot hold."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.formats.table import find_format
from ampwise.records.nonfinite import Origin
from ampwise.records.numerics import TensorKind, TensorStatistics


def large_weights(case: Case) -> Iterator[tuple[TensorStatistics, float]]:
    """Weights with a number that is infinite in fp16, and its magnitude; only of a run that computes in fp16."""
    fp16 = find_format("fp16")
    numerics = case.run.numerics
    if numerics is None or fp16 is None or not computes_in_fp16(case):
        return
    for tensor in numerics.tensors:
        amax = tensor.max_amax
        if tensor.kind is TensorKind.WEIGHT and amax is not None and amax >= fp16.overflow_threshold:
            yield tensor, amax


def holds_large_weight(case: Case, origin: Origin) -> bool:
    """Whether the operator is the cast of a weight that is beyond fp16."""
    is_cast = origin.site.op in {"aten._to_copy", "aten.copy_", "aten.to"}
    return is_cast and any(tensor.module == origin.site.module for tensor, _ in large_weights(case))


def computes_in_fp16(case: Case) -> bool:
    """Whether any operator of the run was seen to compute in fp16."""
    casts, numerics = case.run.casts, case.run.numerics
    if "fp16" in case.run.precision and case.run.left_alone is None:
        return True
    if casts is not None and any("fp16" in call.dtype for call in casts.calls):
        return True
    return numerics is not None and any(tensor.dtype == "fp16" for tensor in numerics.tensors)
