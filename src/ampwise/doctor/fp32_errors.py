"""The comparison with fp32, as the rules on silent errors ask it."""

import math
from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.records.against_fp32 import ModuleError

_WRONG_ROWS: Final = 0.05
"""Rows of few numbers may be equal after rounding; those are a rounding away from fp32."""


def errors(case: Case) -> tuple[ModuleError, ...]:
    """Each call of a module beside fp32's, in the order they returned; none where nothing low was compared."""
    record = case.run.against_fp32
    return record.modules if record is not None and record.format != "fp32" else ()


def error_of(case: Case, module: str) -> float | None:
    """The largest relative error of a module's output; None where it was not compared."""
    return max(
        (one.relative for one in errors(case) if one.module == module and not math.isnan(one.relative)), default=None
    )


def born_here(case: Case, *, least: float, growth: float) -> Iterator[ModuleError]:
    """Calls whose error arose in them: at least ``least``, ``growth`` times their input's, and in no module within.

    An infinity of the low format's is the trace's to tell of.
    """
    found: list[ModuleError] = []
    for one in errors(case):  # those within return first
        is_large = math.isfinite(one.amax) and math.isfinite(one.relative) and one.relative >= least
        if not is_large or one.relative < growth * (one.relative_input or 0.0):
            continue
        if not any(is_within(other.module, one.module) for other in found):
            found.append(one)
            yield one


def is_within(inner: str, outer: str) -> bool:
    """Whether a module is the other, or hangs below it."""
    return inner == outer or not outer or inner.startswith(f"{outer}.")


def rows_fell_together(one: ModuleError) -> bool:
    """Whether at least half of the rows that fp32 tells apart are equal in the low format, and wrong by that."""
    low, high = one.num_distinct, one.num_distinct_fp32
    is_born_here = one.relative >= max(_WRONG_ROWS, 2.0 * (one.relative_input or 0.0))
    return low is not None and high is not None and high >= 4 and 2 * low <= high and is_born_here
