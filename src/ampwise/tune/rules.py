"""Makes a plan of what stays: rules from the model inward, then those on operators, each with its reason."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ampwise._base.errors import UsageError
from ampwise.emulate.recipes import RECIPES
from ampwise.plan.binding import gathered, misfits
from ampwise.plan.patterns import REGEX, covers
from ampwise.plan.plan import Plan, Rule
from ampwise.records.sensitivity import ModuleSensitivity
from ampwise.tune.units import Place

_EVERY: Final = "*"
_ALL_BELOW_THE_MODEL: Final = "?*"
_WITHIN: Final = "what it calls is computed low again"
_IN_MODULES: Final = "in the modules it is computed as before"
_GLOB: Final = frozenset("*?[")

_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")
"""A word of a path that counts layers."""

_Group = tuple[str | None, frozenset[str]]
"""A pattern, or None for every module, and the modules that it gathers."""
Reasons = Callable[[str], str | None]
"""Why a place stays, by its name."""


def plan_of(
    base: Plan,
    kept: Collection[Place],
    modules: Sequence[ModuleSensitivity],
    *,
    high: str = "fp32",
    why: Reasons = lambda _: None,
) -> Plan:
    """``base`` with rules behind its own, by which what is kept computes in ``high``.

    A rule on a module holds for all it calls. Of these, the ones that are not kept get the default back by a second
    rule; where ``base`` has rules of its own, which that would overrule, they stay with their caller. An operator that
    stays in every module that calls it takes one rule.

    Args:
        base: What holds where nothing is kept.
        kept: What is.
        modules: All that were called.
        high: The format of what is kept.
        why: Gives the rules' reasons.
    """
    rules = tuple(_Rules.of(base, kept, modules, high, why).all())
    places = {rule.selector for rule in rules}
    return replace(base, rules=(*(rule for rule in base.rules if rule.selector not in places), *rules))


def check_fit(base: Plan, modules: Sequence[ModuleSensitivity]) -> tuple[str, ...]:
    """Refuse a plan to begin with that names a module which this model lacks, and has one of a similar name.

    Rules that resemble nothing pass: a plan for many models has them.

    Returns:
        A sentence for the rules that do nothing on this model.

    Raises:
        UsageError: every such rule, with the name that was probably meant.
    """
    called = [path for one in modules for path in (one.module, *one.aliases)]
    paths = {above for path in called for above in _upwards(path)}
    # in a script of several models the first word may be left out
    paths |= {path.partition(".")[2] for path in paths}
    found = misfits(base, {"": sorted(paths)})
    meant = [sentence for sentence in found if "did you mean" in sentence]
    if meant:
        raise UsageError("the plan to begin with does not fit the model: " + "; ".join(meant))
    return tuple(f"the plan to begin with: {sentence}" for sentence in gathered(found, sorted(paths)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What stays, and what is known of the model."""

    base: Plan
    high: str
    why: Reasons
    modules: Mapping[str, ModuleSensitivity]
    whole: frozenset[str]
    """Modules that stay."""
    parts: Mapping[str, frozenset[str]]
    """Operators that stay in some modules, with those modules."""
    outside: tuple[Place, ...]
    places: Mapping[tuple[str | None, str], Place]
    """Each module's operators, each by itself, with the place that names it."""

    @classmethod
    def of(
        cls, base: Plan, kept: Collection[Place], modules: Sequence[ModuleSensitivity], high: str, why: Reasons
    ) -> "_Rules":
        parts: dict[str, set[str]] = {}
        inside = [place for place in kept if place.module is not None and place.operators]
        for place in inside:
            for op in place.operators:
                parts.setdefault(op, set()).add(place.module or "")
        return cls(
            base=base,
            high=high,
            why=why,
            modules={one.module: one for one in modules},
            whole=frozenset(place.module for place in kept if place.module is not None and not place.operators),
            parts={op: frozenset(paths) for op, paths in parts.items()},
            outside=tuple(sorted((place for place in kept if place.module is None), key=lambda place: place.name)),
            places={(place.module, op): place for place in inside for op in place.operators},
        )

    def all(self) -> Iterator[Rule]:
        """The rules, those that hold for less behind those that hold for more."""
        gathered = {op: self._gathered(op) for op in self.parts}
        yield from self._outside({op for op, groups in gathered.items() if (None, self.parts[op]) in groups})
        whole: list[str] = []
        for path in sorted(self.whole | {path for paths in self.parts.values() for path in paths}, key=depth):
            if not any(is_below(path, one) for one in whole):
                yield from self._at(path, whole, gathered)
        for op, groups in sorted(gathered.items()):
            for module, paths in groups:
                yield self._for_several(op, module, paths)

    def _at(self, path: str, whole: list[str], gathered: Mapping[str, Sequence[_Group]]) -> Iterator[Rule]:
        """The rules on one module, and what gives the ones within it the default back."""
        if path in self.whole:
            yield from self._named(path, None, self.why(path))
            below = {one for one in self.modules if is_below(one, path)}
            if not below or below <= self.whole or self.base.rules:
                whole.append(path)
            else:
                yield from self._within(path)
            return
        mine = [op for op, paths in sorted(self.parts.items()) if path in paths]
        operators = [op for op in mine if not any(path in paths for _, paths in gathered[op])]
        for op in operators:
            yield from self._named(path, op, self.why(self.places[path, op].name))
        if any(self._is_called_below(op, path) for op in operators) and not self.base.rules:
            yield from self._within(path)

    def _named(self, path: str, op: str | None, because: str | None) -> Iterator[Rule]:
        for name in self._names(path):
            yield Rule(module=pattern(name), op=op, compute=self.high, because=because)

    def _within(self, path: str) -> Iterator[Rule]:
        for name in self._names(path):
            yield Rule(module=pattern_below(name), compute=self.base.default, because=_WITHIN)

    def _names(self, path: str) -> tuple[str, ...]:
        return (path, *self.modules[path].aliases) if path in self.modules else (path,)

    def _callers(self, op: str) -> frozenset[str]:
        return frozenset(one.module for one in self.modules.values() if op in one.operators)

    def _is_called_below(self, op: str, path: str) -> bool:
        return any(is_below(one, path) for one in self._callers(op) - self.whole - self.parts[op])

    def _gathered(self, op: str) -> tuple[_Group, ...]:
        """The modules in which an operator stays that one rule can name, without naming any in which it does not."""
        paths, others = self.parts[op], self._callers(op) - self.parts[op] - self.whole
        if len(paths) > 1 and not others:
            return ((None, paths),)
        groups: dict[str, set[str]] = {}
        for path in paths:
            if len(self._names(path)) == 1 and not _GLOB & set(path):
                groups.setdefault(_NUMBER.sub("*", path), set()).add(path)
        return tuple(
            (glob, frozenset(group))
            for glob, group in sorted(groups.items())
            if len(group) > 1 and not any(covers(glob, one) for one in others)
        )

    def _for_several(self, op: str, module: str | None, paths: frozenset[str]) -> Rule:
        first = min(paths, key=list(self.modules).index)
        because = self.why(self.places[first, op].name)
        is_taken = module is None and any(rule.module is None and rule.op == op for rule in self.base.rules)
        return Rule(
            module=_EVERY if is_taken else module,
            op=op,
            compute=self.high,
            because=because and f"{because}; so in {len(paths)} modules, such as {first or 'the model itself'}",
        )

    def _outside(self, everywhere: Collection[str]) -> Iterator[Rule]:
        """A rule on an operator alone holds outside of the modules too, and in them: there it is taken back."""
        operators = [(op, place) for place in self.outside for op in place.operators if op not in everywhere]
        for op, place in operators:
            yield Rule(op=op, compute=self.high, because=self.why(place.name))
        is_called = any(op in one.operators for one in self.modules.values() for op, _ in operators)
        if is_called and "" not in self.whole and not self.base.rules:
            yield Rule(module=_EVERY, compute=self.base.default, because=_IN_MODULES)


def pattern(path: str) -> str:
    """What a rule calls a module; the model itself is every module."""
    if not path:
        return _EVERY
    return f"{REGEX}{re.escape(path)}" if _GLOB & set(path) else path


def pattern_below(path: str) -> str:
    """What a rule calls the modules that a module calls."""
    if not path:
        return _ALL_BELOW_THE_MODEL
    return rf"{REGEX}{re.escape(path)}\..+" if _GLOB & set(path) else f"{path}.*"


def is_below(path: str, above: str) -> bool:
    """Whether a module is called within another, by their paths."""
    return path != above and (not above or path.startswith(f"{above}."))


def depth(path: str) -> tuple[int, str]:
    """Outer modules first, those of one depth by name."""
    return (path.count(".") + 1 if path else 0), path


def with_fp8(plan: Plan, low: str) -> Plan:
    """The plan of an emulated fp8 search as hardware carries it out: linear layers in fp8 wherever autocast is on.

    Emulation takes every product with a weight in fp8; a plan says so by its rule, once for all and once again wherever
    a rule on a module gave the default back.
    """
    if not low.startswith("fp8"):
        return plan
    rules: list[Rule] = [_fp8_rule(low, None)]
    for rule in plan.rules:
        rules.append(rule)
        if rule.because in {_WITHIN, _IN_MODULES}:
            rules.append(_fp8_rule(low, rule.module))
    return replace(plan, rules=tuple(rules))


def _fp8_rule(low: str, module: str | None) -> Rule:
    gradients = RECIPES[low].gradients
    return Rule(module=module, op="linear", compute=low, grad=gradients, because=f"tried by emulating {low}")


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""
