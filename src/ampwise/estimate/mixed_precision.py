"""Mixed precision among the changes that would make a step take less: a run of its own."""

from collections.abc import Callable
from dataclasses import replace

from ampwise.estimate.worth import worth_a_line
from ampwise.records.estimate import Estimate, Remedy


def with_mixed_precision(
    estimate: Estimate, *, compute: str, best: str, how: str, predict: Callable[[], Estimate]
) -> Estimate:
    """``estimate``; one in fp32 that does not fit, with what mixed precision would make of it.

    Args:
        estimate: What was predicted.
        compute: In which precision.
        best: The GPU's, of 16 bits; fp32 where it has none.
        how: How to ask for it.
        predict: Predicts the step in it; called only where it is told of.
    """
    if estimate.fits is not False or estimate.is_lower_bound or compute not in {"fp32", "tf32"} or best == "fp32":
        return estimate
    after = predict().needed_bytes
    remedy = Remedy(what=f"mixed precision: {how}", saved_bytes=estimate.needed_bytes - after, needed_bytes=after)
    return replace(estimate, remedies=worth_a_line([*estimate.remedies, remedy], estimate.needed_bytes))
