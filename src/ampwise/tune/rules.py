"""Makes a plan of the modules that stay: rules from the model inward, each with its reason."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ampwise._base.errors import UsageError
from ampwise.emulate.recipes import RECIPES
from ampwise.plan.binding import misfits
from ampwise.plan.patterns import REGEX
from ampwise.plan.plan import Plan, Rule
from ampwise.records.sensitivity import ModuleSensitivity

_EVERY: Final = "*"
_ALL_BELOW_THE_MODEL: Final = "?*"
_WITHIN: Final = "what it calls is computed low again"
_GLOB: Final = frozenset("*?[")

Reasons = Callable[[str], str | None]
"""Why a module stays, by its path."""


def plan_of(
    base: Plan,
    kept: Collection[str],
    modules: Sequence[ModuleSensitivity],
    *,
    high: str = "fp32",
    why: Reasons = lambda _: None,
) -> Plan:
    """``base`` with rules behind its own, by which what the kept modules compute themselves is in ``high``.

    A rule on a module holds for all it calls. Of these, the ones that are not kept get the default back by a second
    rule; where ``base`` has rules of its own, which that would overrule, they stay with their caller.

    Args:
        base: What holds where nothing is kept.
        kept: Paths of modules.
        modules: All that were called.
        high: The format of the kept ones.
        why: Gives the rules' reasons.
    """
    paths = {one.module: one for one in modules}
    return replace(base, rules=(*base.rules, *_rules(base, frozenset(kept), paths, high, why)))


def check_fit(base: Plan, modules: Sequence[ModuleSensitivity]) -> None:
    """Refuse a plan to begin with that names a module which this model lacks, and has one of a similar name.

    Rules that resemble nothing pass: a preset for many models has them.

    Raises:
        UsageError: every such rule, with the name that was probably meant.
    """
    called = [path for one in modules for path in (one.module, *one.aliases)]
    paths = {above for path in called for above in _upwards(path)}
    # in a script of several models the first word may be left out
    paths |= {path.partition(".")[2] for path in paths}
    meant = [sentence for sentence in misfits(base, {"": sorted(paths)}) if "did you mean" in sentence]
    if meant:
        raise UsageError("the plan to begin with does not fit the model: " + "; ".join(meant))


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _rules(
    base: Plan, kept: frozenset[str], paths: Mapping[str, ModuleSensitivity], high: str, why: Reasons
) -> Iterator[Rule]:
    whole: list[str] = []
    for path in sorted(kept, key=depth):
        if any(is_below(path, one) for one in whole):
            continue
        below = {one for one in paths if is_below(one, path)}
        for name in (path, *_aliases(paths, path)):
            yield Rule(module=pattern(name), compute=high, because=why(path))
        if not below or below <= kept or base.rules:
            whole.append(path)
            continue
        for name in (path, *_aliases(paths, path)):
            yield Rule(module=pattern_below(name), compute=base.default, because=_WITHIN)


def _aliases(paths: Mapping[str, ModuleSensitivity], path: str) -> tuple[str, ...]:
    return paths[path].aliases if path in paths else ()


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
        if rule.because == _WITHIN:
            rules.append(_fp8_rule(low, rule.module))
    return replace(plan, rules=tuple(rules))


def _fp8_rule(low: str, module: str | None) -> Rule:
    gradients = RECIPES[low].gradients
    return Rule(module=module, op="linear", compute=low, grad=gradients, because=f"tried by emulating {low}")
