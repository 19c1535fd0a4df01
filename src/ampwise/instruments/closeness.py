"""Says how far one tensor is from another that it should equal."""

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.tree import flatten, unflatten
from ampwise.observe.dtypes import dtype_name, leaf_tensors
from ampwise.records.against_fp32 import ModuleError

_MAX_ROWS: Final = 4096
_MAX_ELEMENTS: Final = 2**20
"""Beyond either it is not counted how many rows are distinct: that sorts them."""
HALVES: Final = frozenset({torch.float16, torch.bfloat16})
"""The formats of half precision."""


@dataclass(frozen=True, slots=True)
class Values:
    """What one call of a module gave, and was given: the first floating tensor of each, widened."""

    dtype: torch.dtype
    """Of the output as it was."""
    output: Tensor
    input: Tensor | None


def values_of(output: Any, args: tuple[Any, ...]) -> Values | None:
    """What to compare of a call; None where it gave no floating tensor."""
    given = next((one for one in leaf_tensors(list(args)) if _is_float(one)), None)
    made = next((one for one in leaf_tensors(output) if _is_float(one)), None)
    if made is None:
        return None
    return Values(made.dtype, _copy(made), None if given is None else _copy(given))


def widened(nested: Any) -> Any:
    """The same with every half-precision tensor in fp32, whatever they are nested in."""
    leaves, structure = flatten(nested)
    return unflatten(
        [one.float() if isinstance(one, Tensor) and one.dtype in HALVES else one for one in leaves], structure
    )


def module_error(low: Values, high: Values, *, module: str, module_kind: str, call: int) -> ModuleError:
    """How far the low format's output is from fp32's. Waits for the device."""
    mine, other = low.output, high.output
    rows = rows_of(mine), rows_of(other)
    has_rows = rows[0] is not None and rows[1] is not None
    return ModuleError(
        module=module,
        module_kind=module_kind,
        call=call,
        dtype=dtype_name(low.dtype),
        num_elements=mine.numel(),
        relative=relative_error(mine, other),
        relative_input=_input_error(low.input, high.input),
        cosine=_cosine(mine, other),
        max_abs=_largest(mine - other),
        amax=_largest(other),
        num_rows=rows[0].shape[0] if rows[0] is not None and has_rows else 0,
        num_flipped=int((rows[0].argmax(1) != rows[1].argmax(1)).sum())
        if rows[0] is not None and rows[1] is not None
        else 0,
        num_distinct=num_distinct(rows[0]),
        num_distinct_fp32=num_distinct(rows[1]),
    )


def relative_error(mine: Tensor, other: Tensor) -> float:
    """||mine - other|| / ||other||; 0 where both are the same, infinite where only ``other`` is all zero."""
    distance, size = _norm(mine - other), _norm(other)
    if distance == 0.0:
        return 0.0
    return distance / size if size else math.inf


def _input_error(mine: Tensor | None, other: Tensor | None) -> float | None:
    if mine is None or other is None or mine.shape != other.shape:
        return None
    return relative_error(mine, other)


def _cosine(mine: Tensor, other: Tensor) -> float | None:
    sizes = _norm(mine) * _norm(other)
    if not sizes or not math.isfinite(sizes):
        return None
    return (mine.double().flatten() @ other.double().flatten()).item() / sizes


def _norm(tensor: Tensor) -> float:
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).item()


def _largest(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


def rows_of(tensor: Tensor) -> Tensor | None:
    """Its rows along the last dimension; None for a tensor without rows of several numbers."""
    if not tensor.dim() or tensor.shape[-1] < 2 or not tensor.numel():
        return None
    return tensor.reshape(-1, tensor.shape[-1])


def num_distinct(rows: Tensor | None) -> int | None:
    """How many of the rows differ; None where that would take too long to count."""
    if rows is None or rows.shape[0] > _MAX_ROWS or rows.numel() > _MAX_ELEMENTS:
        return None
    return torch.unique(rows, dim=0).shape[0]


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta


def _copy(tensor: Tensor) -> Tensor:
    values = tensor.detach()
    return values.clone() if values.dtype in {torch.float32, torch.float64} else values.float()
