"""What is kept or lowered: modules, ranked by how each does by itself in the low format, and why one stays."""

import math
from collections.abc import Iterable

from ampwise.formats.table import FORMATS
from ampwise.records.sensitivity import ModuleSensitivity, SensitivityRecord
from ampwise.records.tuning import TrialRecord
from ampwise.tune.search import Unit

_ULPS = 8.0
"""Without a gradient to weigh it by, an error is feared from so many roundings on."""


def units_of(record: SensitivityRecord) -> tuple[Unit, ...]:
    """Every module that was called, in the order of the calls.

    The first-order harm is (gradient x error)^2. Where an operator left the format's range, the module stays: it was
    seen to fail, and what becomes of infinities is no matter of first order.
    """
    ranked = (
        Unit(name=one.module, score=_score(one, record.format), is_certain=_is_certain(one)) for one in record.modules
    )
    return tuple({unit.name: unit for unit in ranked}.values())


def most_harmful(record: SensitivityRecord) -> tuple[ModuleSensitivity, ...]:
    """The modules, those to be feared most first."""
    return tuple(sorted(record.modules, key=lambda one: _fear(one, record.format), reverse=True))


def why(
    module: ModuleSensitivity, *, low: str, trials: Iterable[TrialRecord] = (), kept: frozenset[str] = frozenset()
) -> str:
    """Why a module stays, in a plan's words.

    Args:
        module: What was measured of it.
        low: The low format.
        trials: Those made; one that kept all but this module says what it would cost.
        kept: The modules of the plan.
    """
    reasons = [_seen(module, low)]
    without = next((one for one in trials if frozenset(one.kept) == kept - {module.module}), None)
    if without is not None and not without.passes:
        reasons.append(f"with it in {low} {without.reason}")
    return "; ".join(reasons)


def _seen(module: ModuleSensitivity, low: str) -> str:
    fault = module.fault
    if fault is not None:
        size = "" if fault.amax is None else f", amax {fault.amax:.2g}"
        place = "a cast" if fault.op == "aten._to_copy" else fault.name
        where = f" ({fault.file}:{fault.line})" if fault.file is not None else ""
        return f"{fault.format} overflow in {place}{size} at step {fault.step + 1}{where}"
    if module.fell_together:
        return f"rows that fp32 tells apart are equal in {low}: relative error {module.relative:.2g}"
    if module.num_other_decisions:
        share = module.num_other_decisions / module.num_decisions
        return f"{share:.1%} of its decisions come out otherwise in {low}"
    if not module.relative:
        return "what reaches it and leaves it is rounded"
    return f"relative error {module.relative:.2g} in {low}"


def _is_certain(module: ModuleSensitivity) -> bool:
    return module.fault is not None


def _score(module: ModuleSensitivity, low: str) -> float:
    if module.fault is not None or module.fell_together:
        return math.inf
    if module.score is not None:
        return module.score
    is_large = math.isnan(module.relative) or module.relative > _ULPS * FORMATS[low].eps
    return math.inf if is_large else 0.0


def _fear(module: ModuleSensitivity, low: str) -> tuple[bool, float]:
    score = _score(module, low)
    return _is_certain(module), math.inf if math.isnan(score) else score
