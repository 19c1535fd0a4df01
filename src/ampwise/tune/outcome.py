"""What a search came to, in sentences: the answer, what fp32 itself does, what the reader should know."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ampwise._base.errors import CannotRunError
from ampwise._base.text import inert_line
from ampwise.compare.losses import curves
from ampwise.records.run import Failure, RunRecord
from ampwise.records.sensitivity import SensitivityRecord
from ampwise.records.tuning import NoiseRecord, Outcome, TrialRecord
from ampwise.tune.reasons import of_fault
from ampwise.tune.search import Found
from ampwise.tune.units import OUTSIDE, Place, Places

TIME_WAS_OVER: Final = "time was over"
INTERRUPTED: Final = "the search was interrupted"


def answer(
    found: Found,
    places: Places,
    sensitivity: SensitivityRecord,
    trials: Sequence[TrialRecord],
    *,
    is_confirmed: bool,
    ended: str = TIME_WAS_OVER,
) -> tuple[Outcome, str]:
    """The outcome, and a sentence for it.

    Args:
        found: By the search.
        places: All that may be kept.
        sensitivity: Of all modules.
        trials: Those made.
        is_confirmed: The plan passed with another seed too.
        ended: What ended the search, where it was not at its end.
    """
    low = sensitivity.format
    if found.best is None and not found.is_complete:
        return (
            Outcome.NOTHING_YET,
            f"{ended} after {_runs(len(trials))}, and none had passed{_nearest(trials, low)}",
        )
    if found.best is None:
        return Outcome.OUTSIDE, (
            "even with every module in fp32 the tolerance is missed, so the fault lies in what the script computes "
            f"outside of its modules, where no rule could be made for it{_nearest(trials, low)}"
        )
    kept = frozenset(found.best.kept)
    lowered = [one for one in sensitivity.modules if one.module not in kept and (one.relative or one.fault)]
    if not lowered:
        return (
            Outcome.ONLY_FP32,
            f"nothing can be computed in {low} within the tolerance{_limit(trials, sensitivity, places)}",
        )
    how = _how([places.by_name[one] for one in kept], low)
    if is_confirmed:
        return Outcome.FOUND, how
    return Outcome.OUT_OF_TIME, (
        f"{how}, by the first seed alone; {ended} before another seed confirmed it"
        if found.is_complete
        else f"{how}; {ended} before fewer were tried and another seed confirmed it"
    )


def check_losses(run: RunRecord) -> None:
    """Refuse a training without a loss.

    Raises:
        CannotRunError: none was seen.
    """
    if not curves(run):
        raise CannotRunError(
            f"{len(run.steps)} steps were seen and no loss, by which a plan is judged: a single number on which the "
            "script calls backward"
        )


def what_failed(run: RunRecord) -> str:
    """What went wrong in a run, as the beginning of a sentence."""
    if not run.has_finished:
        num = len(run.steps)
        after = f"after {num} step{'s' * (num != 1)}" if num else "in its first step or before it"
        return f"the script fails {after}{f' ({_told(run.failure)})' if run.failure is not None else ''}"
    return f"the loss is not finite from step {(run.first_bad_loss or 0) + 1} on"


def is_refusal(run: RunRecord) -> bool:
    """Whether the script ended as parsers of arguments end one, before it trained."""
    return run.failure is not None and run.failure.kind == "exit status 2" and not run.steps


def _told(failure: Failure) -> str:
    lines = failure.message.strip().splitlines()
    what = f"{failure.kind}: {lines[-1]}" if lines else failure.kind
    where = f" at {inert_line(failure.where)}" if failure.where else ""
    return f"{inert_line(what, max_length=200)}{where}"


def origin_in(run: RunRecord) -> str:
    """Where a run lost its numbers first, as a clause; nothing where nobody saw."""
    first = run.nonfinite.first if run.nonfinite is not None else None
    if first is None or not first.site.op:
        return ""
    where = f" in {inert_line(first.site.module)}" if first.site.module else ""
    line = f" ({inert_line(first.site.where)})" if first.site.where else ""
    return f": {inert_line(first.site.op)}{where}{line} makes {first.kind.value} of finite numbers"


def notes_on(trials: Iterable[TrialRecord], sensitivity: SensitivityRecord, noise: NoiseRecord) -> Iterator[str]:
    """What the reader should know of the trials, and of the runs that they are judged by."""
    own = next((trial.left_alone for trial in trials if trial.left_alone is not None), None)
    if own is not None:
        yield (
            f"the script has mixed precision of its own ({inert_line(own, max_length=120)}); the plan was tried within "
            "it. `ampwise run --plan` leaves such a script alone: put the plan on with ampwise.apply_plan(model, ...)"
        )
    if noise.rerun:
        share = noise.rerun / noise.level if noise.level else math.inf
        yield f"two fp32 runs with the same seeds differ by {share:.2%} in their mean loss"
    if sensitivity.note is not None:
        yield inert_line(sensitivity.note, max_length=300)


def _limit(trials: Sequence[TrialRecord], sensitivity: SensitivityRecord, places: Places) -> str:
    """The failing trial that computed fewest modules in the low format: what it costs."""
    failing = [(one, _lowered(one.kept, sensitivity, places)) for one in trials if not one.passes]
    failing = [(one, lowered) for one, lowered in failing if lowered]
    if not failing:
        return _overflows(sensitivity)
    worst, lowered = min(failing, key=lambda one: (len(one[1]), one[0].error))
    names = ", ".join(lowered[:3])
    more = f" and {len(lowered) - 3} more" if len(lowered) > 3 else ""
    return f": with {names}{more} in {sensitivity.format} {worst.reason}, {_times(worst.error)} what is tolerated"


def _lowered(kept: Sequence[str], sensitivity: SensitivityRecord, places: Places) -> list[str]:
    """What a trial computed in the low format that may do harm there: modules, and operators outside of them."""
    stays = [places.by_name[one] for one in kept]
    whole = {one.module for one in stays if one.module is not None and not one.operators}
    parts = {one.module: f" but its {' and '.join(one.operators)}" for one in stays if one.module is not None}
    modules = (one.module for one in sensitivity.modules if (one.relative or one.fault) and one.module not in whole)
    outside = [one.op for one in sensitivity.outside if one.relative or one.fault is not None]
    kept_outside = {op for one in stays if one.module is None for op in one.operators}
    return [
        *(inert_line(one or "the model itself", max_length=60) + parts.get(one, "") for one in modules),
        *(f"{inert_line(op, max_length=60)} {OUTSIDE}" for op in outside if op not in kept_outside),
    ]


def _overflows(sensitivity: SensitivityRecord) -> str:
    """What stays in every trial, because it leaves the format's range."""
    faults = [(one.module, one.fault) for one in sensitivity.modules if one.fault is not None]
    if not faults:
        return ""
    module, fault = faults[0]
    more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
    name = inert_line(module or "the model itself", max_length=60)
    return f": {name} stays ({of_fault(fault)}{more}), and nothing else of the model would be in {sensitivity.format}"


def _nearest(trials: Sequence[TrialRecord], low: str) -> str:
    finite = [one for one in trials if math.isfinite(one.error)]
    if not finite:
        return f": {trials[-1].reason}" if trials else ""
    best = min(finite, key=lambda one: one.error)
    kept = f"{_modules(len(best.kept))} kept out of {low}"
    return f": nearest came {kept}, where {best.reason}, {_times(best.error)} what is tolerated"


def _times(error: float) -> str:
    return "beyond" if math.isinf(error) else f"{error:.3g} times"


def _how(kept: Sequence[Place], low: str) -> str:
    """How much can be computed low: operators outside of the modules are no part of the model."""
    whole = sum(not place.operators for place in kept)
    parts = sum(len(place.operators) for place in kept if place.module is not None)
    outside = sum(len(place.operators) for place in kept if place.module is None)
    told = [_modules(whole)] if whole else []
    told += [f"{_operators(parts)} {'of others' if whole else 'in its modules'}"] if parts else []
    beyond = f", {_operators(outside)} outside of it {'has' if outside == 1 else 'have'} to stay" if outside else ""
    return f"all of the model{' but ' if told else ''}{' and '.join(told)} can be computed in {low}{beyond}"


def _operators(count: int) -> str:
    return f"{count} operator{'s' * (count != 1)}"


def _modules(count: int) -> str:
    return f"{count} module{'s' * (count != 1)}"


def _runs(count: int) -> str:
    return f"{count} trial{'s' * (count != 1)}"
