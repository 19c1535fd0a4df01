"""Which operators that made infinities are at fault: many a script makes some and takes them out again."""

from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of
from ampwise.doctor.origins import format_of, origins
from ampwise.doctor.reruns import fp32_run
from ampwise.records.nonfinite import Origin

_FP32: Final = frozenset({"fp32", "float64"})


def faults(case: Case) -> tuple[Origin, ...]:
    """Operators that made infinities or NaN of finite numbers and were not meant to, the first first."""
    return tuple(one for one in origins(case) if not _is_meant(case, one))


def meant(case: Case) -> tuple[Origin, ...]:
    """The others: ``deg.pow(-0.5)`` of a lonely node, set to 0 later; the logarithm of a mask, for a softmax."""
    return tuple(one for one in origins(case) if _is_meant(case, one))


def _is_meant(case: Case, origin: Origin) -> bool:
    """Whether a run in fp32 made it too and lost nothing; where none was made, whether this one did not."""
    if cause_of(origin) is Cause.HIDDEN:
        return False  # nothing is lost by it, and yet the result is wrong
    fp32 = fp32_run(case)
    if fp32 is None or fp32 is case.run:
        return format_of(origin) in _FP32 and case.run.keeps_numbers
    found = fp32.nonfinite.origins if fp32.nonfinite is not None else ()
    return fp32.keeps_numbers and any(one.site == origin.site for one in found)
