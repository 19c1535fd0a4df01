"""What is kept or lowered: modules, operators outside of them, and of a module that stays the operators at fault."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ampwise.formats.table import FORMATS
from ampwise.records.sensitivity import ModuleSensitivity, OutsideSensitivity, SensitivityRecord
from ampwise.tune.search import Unit

_ULPS = 8.0
"""Without a gradient to weigh it by, an error is feared from so many roundings on."""
_FLIPS = 0.05
"""From such a share of decisions that come out otherwise on, a module is feared."""
OUTSIDE = "outside of the modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a rule of the plan is about: a module, some of its operators, or an operator outside of all modules."""

    module: str | None
    """Its path; None outside of all modules."""
    operators: tuple[str, ...] = ()
    """As rules name them; none for all that the module computes."""

    @property
    def name(self) -> str:
        """What a trial calls it: ``attn``, ``matmul in attn``, ``mul and sum in the model itself``."""
        if not self.operators:
            return self.module or ""
        where = OUTSIDE if self.module is None else f"in {self.module or 'the model itself'}"
        return f"{' and '.join(self.operators)} {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All places of a script that may be kept, by the names that trials call them."""

    by_name: Mapping[str, Place]
    parts: Mapping[str, str]
    """For a module, the name of its operators at fault, where they are known."""

    @classmethod
    def of(cls, record: SensitivityRecord) -> "Places":
        """Those of a training."""
        modules = [Place(module=one.module) for one in record.modules]
        parts = {one.module: Place(module=one.module, operators=one.at_fault) for one in record.modules if one.at_fault}
        outside = [_outside(one) for one in record.outside]
        every = (*modules, *parts.values(), *outside)
        return cls(
            by_name={place.name: place for place in every},
            parts={module: place.name for module, place in parts.items()},
        )

    def order(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names in the order in which modules were called."""
        rank = {name: place for place, name in enumerate(self.by_name)}
        return tuple(sorted(names, key=rank.__getitem__))


def units_of(record: SensitivityRecord) -> tuple[Unit, ...]:
    """Every module that was called, in the order of the calls, then the operators outside that are off.

    The first-order harm is (gradient x error)^2. Where an operator left the format's range, or rows fell together, the
    unit stays: it was seen to fail, and what becomes of that is no matter of first order.
    """
    low = record.format
    modules = (Unit(name=one.module, score=_score(one, low), is_certain=is_certain(one)) for one in record.modules)
    outside = (
        Unit(name=_outside(one).name, score=_outside_score(one, low), is_certain=one.fault is not None)
        for one in record.outside
        if one.relative or one.fault is not None
    )
    return tuple({unit.name: unit for unit in (*modules, *outside)}.values())


def most_harmful(record: SensitivityRecord) -> tuple[ModuleSensitivity, ...]:
    """The modules, those to be feared most first."""
    return tuple(sorted(record.modules, key=lambda one: _fear(one, record.format), reverse=True))


def is_certain(module: ModuleSensitivity) -> bool:
    """Whether it stays whatever the loss says."""
    return module.fault is not None or module.fell_together


def _outside(one: OutsideSensitivity) -> Place:
    return Place(module=None, operators=(one.op,))


def _score(module: ModuleSensitivity, low: str) -> float:
    if is_certain(module) or module.num_other_decisions > _FLIPS * module.num_decisions:
        return math.inf  # no gradient goes through what was decided
    return _weighed(module.score, module.relative, low)


def _outside_score(one: OutsideSensitivity, low: str) -> float:
    return math.inf if one.fault is not None else _weighed(one.score, one.relative, low)


def _weighed(score: float | None, relative: float, low: str) -> float:
    if score is not None:
        return score
    is_large = math.isnan(relative) or relative > _ULPS * FORMATS[low].eps
    return math.inf if is_large else 0.0


def _fear(module: ModuleSensitivity, low: str) -> tuple[bool, float]:
    score = _score(module, low)
    return is_certain(module), math.inf if math.isnan(score) else score
