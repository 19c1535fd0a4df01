"""Why something stays in fp32, in a plan's words."""

from collections.abc import Iterable

from ampwise.formats.table import FORMATS
from ampwise.records.sensitivity import ModuleSensitivity, OutsideSensitivity, RangeFault, SensitivityRecord
from ampwise.records.tuning import TrialRecord
from ampwise.tune.units import Place, Places


def reasons_for(
    kept: frozenset[str], record: SensitivityRecord, places: Places, trials: Iterable[TrialRecord]
) -> dict[str, str]:
    """Why each of the places stays, by its name.

    Args:
        kept: The plan's.
        record: What was measured.
        places: All of them.
        trials: Those made; one that kept all but this place says what it would cost.
    """
    made = tuple(trials)
    reasons: dict[str, str] = {}
    for name in places.order(kept):
        told = [_seen(places.by_name[name], record)]
        without = next((one for one in made if frozenset(one.kept) == kept - {name}), None)
        if without is not None and not without.passes:
            told.append(f"with it in {record.format} {without.reason}")
        reasons[name] = "; ".join(told)
    return reasons


def _seen(place: Place, record: SensitivityRecord) -> str:
    if place.module is None:
        one = next(one for one in record.outside if (one.op,) == place.operators)
        return _of_outside(one, record.format)
    module = next(one for one in record.modules if one.module == place.module)
    left = f", {module.left:.0%} of it with {' and '.join(place.operators)} in fp32"
    return f"{of_module(module, record.format)}{left if place.operators and module.fault is None else ''}"


def of_module(module: ModuleSensitivity, low: str) -> str:
    """What was seen of a module by itself in the low format."""
    if module.fault is not None:
        return of_fault(module.fault)
    if module.fell_together:
        return f"rows that fp32 tells apart are equal in {low}: relative error {module.relative:.2g}"
    if module.num_other_decisions:
        share = module.num_other_decisions / module.num_decisions
        return f"{share:.1%} of its decisions come out otherwise in {low}"
    if not module.relative:
        return "what reaches it and leaves it is rounded"
    return f"relative error {module.relative:.2g} in {low}"


def of_fault(fault: RangeFault) -> str:
    """An operator that left the format's range: ``fp16 overflow in mm, amax 8.1e+04 at step 3 (net.py:7)``."""
    place = "a cast" if fault.op == "aten._to_copy" else fault.name
    when = f"at step {fault.step + 1}{f' ({fault.file}:{fault.line})' if fault.file is not None else ''}"
    if fault.amax is None:
        return f"{fault.format} overflow in {place} {when}"
    if fault.amax < FORMATS[fault.format].max:
        return f"{place} is infinite or NaN in {fault.format}, in fp32 at most {fault.amax:.2g}, {when}"
    return f"{fault.format} overflow in {place}, amax {fault.amax:.2g} {when}"


def _of_outside(one: OutsideSensitivity, low: str) -> str:
    return of_fault(one.fault) if one.fault is not None else f"relative error {one.relative:.2g} in {low}"
