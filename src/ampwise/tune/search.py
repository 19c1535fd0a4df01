"""Which few of many units have to be kept in the high format, found by as few evaluations as possible. Pure.

Units are ranked by how much harm each is expected to do. The best-ranked are kept, twice as many each time, until an
evaluation passes; bisection finds how many of them it takes. Of few, those that are needed are found by halves (Junker
2004, QuickXplain); of many, one is left out at a time, the least harmful first, twice as many after each success, until
so many in a row were needed that the ranking is believed. What was evaluated once is not again.

Law: a set that is given back was evaluated as a whole, and passed. If keeping more never does harm, and at most
``FEW`` of the best-ranked are enough, none of its units can be left out.

The two figures come from nets with planted faults (``benchmarks/tune.py`` has others): without the patience, an
evaluation of every unit found the smallest set in 92 % of them rather than 88 %, for twice as many evaluations at the
ninth decile.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

FEW: Final = 6
"""Of so many kept units, each is proved to be needed."""
PATIENCE: Final = 16
"""Of more, so many in a row that are needed are proof enough."""
_FACTOR: Final = 2
"""So many times as many units are kept after a failure, or left out after a success."""

Kept = frozenset[str]
"""The units that stay in the high format, by name."""


class OutOfTime(Exception):  # noqa: N818 # no error: the search ends with what it has
    """Raised by an evaluation that may not begin any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Something that is computed in the low format or kept in the high one."""

    name: str
    score: float
    """The harm it is expected to do in the low format; infinite where it is seen to fail."""
    is_certain: bool = False
    """It is kept whatever an evaluation says: it fails, even where no loss shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one evaluation showed."""

    kept: tuple[str, ...]
    """In the order of the units."""
    error: float
    """In units of what is tolerated: at most 1 passes. Infinite or NaN where it failed outright."""

    @property
    def passes(self) -> bool:
        """Whether the error is tolerated."""
        return self.error <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to."""

    best: Trial | None
    """The passing trial that keeps fewest; None where none passed."""
    trials: tuple[Trial, ...]
    """Each evaluation, in order."""
    is_complete: bool
    """The search ended by itself, not because its time was over."""


Evaluate = Callable[[Kept], float]
"""The error of keeping these units, in units of what is tolerated; raises ``OutOfTime`` where there is none left."""


def search(units: Sequence[Unit], evaluate: Evaluate, *, start: int = 0) -> Found:
    """The fewest units that have to be kept for an evaluation to pass, as far as they could be found in time.

    Args:
        units: All there are, in an order of their own that breaks ties.
        evaluate: Says how well the rest does in the low format.
        start: How many of the best-ranked are kept at first: those that a prediction names.
    """
    return _Search(units, evaluate).run(start)


def refine(found: Found, parts: Mapping[str, str], evaluate: Evaluate) -> Found:
    """What was found with parts of its units in their place, wherever that passes too.

    Law: of what is given back, as many units are whole as have to be, as far as ``search`` finds that out.

    Args:
        found: By ``search``.
        parts: For some units, what may be kept of them instead.
        evaluate: Says how well the rest does in the low format.
    """
    best = found.best
    options = {name: parts[name] for name in best.kept if name in parts} if best is not None else {}
    if best is None or not found.is_complete or not options:
        return found

    def with_whole(whole: Kept) -> tuple[str, ...]:
        return tuple(name if name in whole or name not in options else options[name] for name in best.kept)

    units = [Unit(name=name, score=0.0) for name in options]
    finer = search(units, lambda whole: evaluate(frozenset(with_whole(whole))))
    trials = tuple(Trial(kept=with_whole(frozenset(one.kept)), error=one.error) for one in finer.trials)
    better = None if finer.best is None else with_whole(frozenset(finer.best.kept))
    chosen = next((trial for trial in trials if trial.kept == better), best)
    return Found(best=chosen, trials=(*found.trials, *trials), is_complete=finer.is_complete)


class _Search:
    def __init__(self, units: Sequence[Unit], evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._order = {unit.name: place for place, unit in enumerate(units)}
        self._certain = frozenset(unit.name for unit in units if unit.is_certain)
        uncertain = [unit for unit in units if not unit.is_certain]
        self._ranked = tuple(unit.name for unit in sorted(uncertain, key=_harm))
        self._trials: dict[Kept, Trial] = {}

    def run(self, start: int) -> Found:
        is_complete = True
        try:
            self._run(start)
        except OutOfTime:
            is_complete = False
        passing = [trial for trial in self._trials.values() if trial.passes]
        best = min(passing, key=lambda trial: (len(trial.kept), trial.error), default=None)
        return Found(best=best, trials=tuple(self._trials.values()), is_complete=is_complete)

    def _run(self, start: int) -> None:
        enough = self._passing_size(min(start, len(self._ranked)))
        if enough is None:
            return
        kept = self._ranked[: self._smallest_size(enough)]
        if len(kept) > FEW or not self._passes(self._needed((), kept, is_changed=False)):  # fewer may do more harm
            self._leave_out(kept)

    def _passing_size(self, start: int) -> int | None:
        """How many of the best-ranked to keep so that it passes; None where all are too few."""
        size = start
        while not self._passes(self._ranked[:size]):
            if size == len(self._ranked):
                return None
            size = min(max(1, size * _FACTOR), len(self._ranked))
        return size

    def _smallest_size(self, enough: int) -> int:
        """How many of the best-ranked it takes, between those that were too few and ``enough``."""
        tried = [size for size in range(enough) if self._certain.union(self._ranked[:size]) in self._trials]
        low = max(tried, default=-1)
        while enough - low > 1:
            middle = (low + enough) // 2
            if self._passes(self._ranked[:middle]):
                enough = middle
            else:
                low = middle
        return enough

    def _needed(self, given: tuple[str, ...], rest: tuple[str, ...], *, is_changed: bool) -> tuple[str, ...]:
        """Those of ``rest`` that are needed beside ``given``, if all of them together are enough."""
        if is_changed and self._passes(given):
            return ()
        if len(rest) <= 1:
            return rest
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        of_second = self._needed((*given, *first), second, is_changed=True)
        of_first = self._needed((*given, *of_second), first, is_changed=bool(of_second))
        return (*of_first, *of_second)

    def _leave_out(self, kept: Sequence[str]) -> None:
        """Leave out what is not needed, the least harmful first, until the ranking has proved right."""
        num_needed, end, size = 0, len(kept), 1
        while end and num_needed < PATIENCE:
            start = max(0, end - size)
            if self._passes([*kept[:start], *kept[end:]]):
                kept = [*kept[:start], *kept[end:]]
                num_needed, end, size = 0, start, size * _FACTOR
            elif end - start > 1:
                size = (end - start) // _FACTOR
            else:
                num_needed, end = num_needed + 1, start

    def _passes(self, names: Iterable[str]) -> bool:
        kept = self._certain.union(names)
        if kept not in self._trials:
            error = self._evaluate(kept)
            self._trials[kept] = Trial(kept=tuple(sorted(kept, key=self._order.__getitem__)), error=error)
        return self._trials[kept].passes


def _harm(unit: Unit) -> float:
    """The most harmful first; a score that is no number is harm unknown, and feared."""
    return -math.inf if math.isnan(unit.score) else -unit.score
