"""What an exception's text tells of a crash: examine asks whether it is worth a trace, doctor whose rule it is."""

import re
from enum import StrEnum
from typing import Final

from ampwise.records.run import Failure


class CrashKind(StrEnum):
    """What an uncaught exception is about."""

    NOT_STARTED = "not started"
    """The script cannot be run as it is: a syntax error, a missing file or package, no CUDA here."""
    OUT_OF_MEMORY = "out of memory"
    BAD_PARAM = "cuDNN's bad parameter"
    HALF_GRADIENTS = "unscaling fp16 gradients"
    SCALER_ORDER = "scaler used out of order"
    UNSAFE_BCE = "binary cross entropy under autocast"
    DEVICES = "tensors on two devices"
    NO_KERNEL = "no kernel for the dtype"
    TOO_LARGE = "a number beyond the dtype's range"
    DTYPES = "dtypes that do not match"
    OWN = "a fault of ampwise's"
    """Raised in ampwise's own code, and none of the above, which torch raises there for the script's reasons."""
    OTHER = "other"


_KINDS: Final = frozenset(
    {"SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError", "ImportError", "FileNotFoundError"}
)
_MEMORY: Final = frozenset({"OutOfMemoryError", "MemoryError"})
_TEXTS: Final = (
    (CrashKind.NOT_STARTED, r"which this machine lacks \(torch "),
    (CrashKind.OUT_OF_MEMORY, r"out of memory|can't allocate memory|not enough memory"),
    (CrashKind.BAD_PARAM, r"CUDNN_STATUS_(?:BAD_PARAM|NOT_SUPPORTED)"),
    (CrashKind.HALF_GRADIENTS, r"Attempting to unscale FP16 gradients|non_finite_check_and_unscale.*not implemented"),
    (
        CrashKind.SCALER_ORDER,
        r"(?:unscale_|step)\(\) (?:has already been|is being) called|No inf checks|Attempted \w+ but _scale is None",
    ),
    (CrashKind.UNSAFE_BCE, r"unsafe to autocast"),
    (CrashKind.DEVICES, r"on the same device|is not on the expected device"),
    (CrashKind.NO_KERNEL, r"not implemented for '(?:Half|BFloat16|Float8\w*)'|Low precision dtypes not supported"),
    (CrashKind.TOO_LARGE, r"cannot be converted to type (?:at::|c10::)?(?:Half|BFloat16) without overflow"),
    (CrashKind.DTYPES, r"mixed dtype|self\.dtype to be equal to src\.dtype"),
)
_TYPES: Final = re.compile(r"d?types?\b|should be the same|did not match|expected both inputs", re.IGNORECASE)
_LOW: Final = re.compile(r"Half|BFloat16|float16|float8", re.IGNORECASE)
"""A message on types that names none of these is about integers, or about numbers beyond fp32."""


def crash_kind(failure: Failure) -> CrashKind:
    """What a failure is about, by its class and the words of torch's messages."""
    if failure.kind in _KINDS:
        return CrashKind.NOT_STARTED
    if failure.kind in _MEMORY:
        return CrashKind.OUT_OF_MEMORY
    found = next((kind for kind, pattern in _TEXTS if re.search(pattern, failure.message)), None)
    if found is not None:
        return found
    if _TYPES.search(failure.message) and _LOW.search(failure.message):
        return CrashKind.DTYPES
    return CrashKind.OTHER if failure.own_place is None else CrashKind.OWN


def may_be_numeric(failure: Failure) -> bool:
    """Whether the crash may come of infinities or NaN, so that a trace may show where they began."""
    return crash_kind(failure) is CrashKind.OTHER
