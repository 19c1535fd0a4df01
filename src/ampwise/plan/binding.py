"""Whether a plan fits a model: rules that mean no module of it, call no operator of it, or never decide."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Final

from ampwise._base.text import inert_line
from ampwise.plan.checks import quoted
from ampwise.plan.patterns import REGEX, is_match
from ampwise.plan.plan import Plan, Rule
from ampwise.plan.presets import presets

_NO_MODULE: Final = " matches no module"
"""How a sentence ends that tells of a rule which means no module, nor one like it."""


def misfits(
    plan: Plan, modules: Mapping[str, Collection[str]], *, operators: Iterable[str] | None = None
) -> tuple[str, ...]:
    """What is to be warned of before the plan is applied to a model, each with the rule's path.

    A preset's rule that means no module is not: ``idle_in_words`` tells of those.

    Args:
        plan: the plan.
        modules: what each root is called (empty where there is one), with the paths of its modules as
            ``named_modules`` gives them.
        operators: the operators that the model calls, where that is known.
    """
    called = None if operators is None else frozenset(operators)
    return tuple(
        text
        for index, rule in enumerate(plan.rules)
        if (text := _misfit(plan, index, rule, modules, called)) is not None
    )


def idle_in_words(plan: Plan, modules: Mapping[str, Collection[str]]) -> str | None:
    """One sentence for the rules that a preset has for other models than this; None where there are none."""
    idle = [
        quoted(rule.module or "") for rule in plan.rules if rule in _preset_rules() and not _has_module(rule, modules)
    ]
    if not idle:
        return None
    return f"{', '.join(idle)}: a preset has {'this rule' if len(idle) == 1 else 'these rules'} for other models"


def has_place(plan: Plan, modules: Mapping[str, Collection[str]]) -> bool:
    """Whether any of the plan's rules on modules means one of these; true where it has no such rules."""
    own = [rule for rule in plan.rules if rule.module is not None]
    return not own or any(_has_module(rule, modules) for rule in own)


def gathered(sentences: Iterable[str], paths: Iterable[str]) -> Iterator[str]:
    """One sentence for all rules that match nothing and resemble nothing."""
    idle: list[str] = []
    for sentence in sentences:
        if sentence.endswith(_NO_MODULE):
            idle.append(sentence.removesuffix(_NO_MODULE).partition(": ")[2])
        else:
            yield sentence
    if idle:
        beginnings = ", ".join(dict.fromkeys(path.partition(".")[0] for path in paths if path))
        yield (
            f"rules on {', '.join(idle)}: no module is called so"
            + (f" (the model's begin with {inert_line(beginnings, max_length=120)})" if beginnings else "")
        )


def _misfit(
    plan: Plan, index: int, rule: Rule, modules: Mapping[str, Collection[str]], called: frozenset[str] | None
) -> str | None:
    places = [(root, path) for root, paths in modules.items() for path in paths]
    if rule.module is not None and not _has_module(rule, modules):
        if rule in _preset_rules():
            return None
        return f"rules[{index}].module: {quoted(rule.module)} {_NO_MODULE.strip()}{_nearest(rule.module, places)}"
    if called is not None and rule.operators is not None and called.isdisjoint(rule.operators):
        return f"rules[{index}].op: {quoted(rule.op or '')} is called nowhere in the model"
    overruled = _overruled_by(plan, rule, places)
    if overruled:
        others = " and ".join(f"rules[{one}] ({plan.rules[one].place()})" for one in sorted(overruled))
        return (
            f"rules[{index}]: {rule.place()} never decides: {others} below it hold{'s' * (len(overruled) == 1)} there"
        )
    return None


@cache
def _preset_rules() -> frozenset[Rule]:
    """Every rule of every preset: for models of certain kinds, and so without effect in the others."""
    return frozenset(rule for row in presets().values() for rule in row.plan.rules)


def _has_module(rule: Rule, modules: Mapping[str, Collection[str]]) -> bool:
    """Whether the rule means one of the modules; a rule on operators alone means them all."""
    return rule.module is None or any(
        is_match(rule.module, path, root=root) for root, paths in modules.items() for path in paths
    )


def _overruled_by(plan: Plan, rule: Rule, places: Iterable[tuple[str, str]]) -> set[int]:
    """The later rules that decide wherever this one holds, and otherwise; none where nothing is lost by them."""
    operators, found = rule.operators, set[int]()
    if operators is not None and rule.module is None:  # it holds outside of the modules too
        return found
    for root, path in places:
        if not rule.holds_at(path, operators, root=root):
            continue
        decided = plan.decide(path, operators, root=root).index
        if decided is None or _asks_for_the_same(plan.rules[decided], rule):
            return set()
        found.add(decided)
    return found


def _asks_for_the_same(one: Rule, other: Rule) -> bool:
    return one.wanted == other.wanted and (one.op is None) == (other.op is None)


def _nearest(pattern: str, places: Iterable[tuple[str, str]]) -> str:
    wanted = pattern.removeprefix(REGEX)
    near = get_close_matches(wanted, dict.fromkeys(_generalised(places)), n=32, cutoff=0.6)
    best = min(near, key=lambda one: _distance(wanted, one), default=None)
    return f"; did you mean {quoted(best)}?" if best is not None else ""


def _distance(wanted: str, given: str) -> float:
    """How far apart two patterns are word by word, from the last on: one word off by a letter is nearest."""
    mine, its = wanted.split(".")[::-1], given.split(".")[::-1]
    apart = sum(1 - SequenceMatcher(None, a, b).ratio() for a, b in zip(mine, its, strict=False))
    return apart + abs(len(mine) - len(its))


def _generalised(places: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Globs that would match: each path with its numbers as stars, and its last word behind one."""
    for root, path in places:
        if root:
            yield root
        if path:
            words = ["*" if word.isdigit() else word for word in path.split(".")]
            yield path
            yield ".".join(words)
            yield f"*.{words[-1]}"
            yield f"{words[0]}.*.{words[-1]}"
