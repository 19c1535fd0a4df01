"""What people mean by a variable's name: the last thing to go by."""

from functools import lru_cache
from typing import Final

from ampwise.lint.torch_names import (
    COUNT_WORD,
    LOADER_WORD,
    LOSS_FUNCTION_WORD,
    LOSS_WORD,
    MODULE_WORD,
    OPTIMIZER_WORD,
    SCALER_WORD,
    SCHEDULER_WORD,
)
from ampwise.lint.values import UNKNOWN, Confidence, Kind, Value

_NAMED: Final = (
    (SCALER_WORD, Kind.SCALER),
    (OPTIMIZER_WORD, Kind.OPTIMIZER),
    (SCHEDULER_WORD, Kind.SCHEDULER),
    (LOADER_WORD, Kind.LOADER),
    (LOSS_FUNCTION_WORD, Kind.LOSS_FUNCTION),
    (MODULE_WORD, Kind.MODULE),
    (LOSS_WORD, Kind.TENSOR),
    (COUNT_WORD, Kind.NUMBER),
)


@lru_cache(maxsize=4096)
def meant_by(word: str) -> Value:
    """What people mean by a variable of that name."""
    kind = next((kind for pattern, kind in _NAMED if pattern.fullmatch(word)), Kind.UNKNOWN)
    if kind is Kind.UNKNOWN:
        return UNKNOWN
    if kind is Kind.TENSOR:
        return Value(kind=kind, confidence=Confidence.NAME, on_device=True, has_graph=True)
    return Value(kind=kind, confidence=Confidence.NAME)
