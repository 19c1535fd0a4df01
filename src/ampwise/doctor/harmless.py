"""Infinities that reach nothing: many a script makes them and takes them out again, in every precision."""

from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.origins import format_of
from ampwise.doctor.reruns import fp32_run
from ampwise.records.nonfinite import Origin

_FP32: Final = frozenset({"fp32", "float64"})


def reaches_nothing(case: Case, origin: Origin) -> bool:
    """Whether what an operator made is meant: no loss, gradient or weight shows it, and fp32 makes it too.

    ``deg.pow(-0.5)`` of a lonely node, whose infinity is set to 0; the logarithm of a mask, which a softmax takes.
    """
    return loses_nothing(case) and (format_of(origin) in _FP32 or _is_in_fp32_too(case, origin))


def loses_nothing(case: Case) -> bool:
    """Whether every loss and weight was finite, and every gradient but a skipped step's."""
    seen, run = case.run.nonfinite, case.run
    if seen is None or run.has_lost_numbers or seen.loss_steps or seen.weight_steps:
        return False
    return {step.index for step in run.steps if step.skipped}.issuperset(seen.gradient_steps)


def _is_in_fp32_too(case: Case, origin: Origin) -> bool:
    run = fp32_run(case)
    found = run.nonfinite.origins if run is not None and run.nonfinite is not None else ()
    return any(one.site == origin.site for one in found)
