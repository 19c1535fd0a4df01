"""Which modules of a model move together."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from torch import Tensor, nn

from ampwise._base.errors import UsageError
from ampwise._base.suggest import closest
from ampwise._base.text import inert_line
from ampwise.adapt.options import quoted, shown
from ampwise.plan.patterns import is_match, mistake_in
from ampwise.runtime.casts.plan_places import has_forward, without_wrappers

Groups = Mapping[str, str | Sequence[str]] | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Modules that move together, with all that runs in them."""

    name: str
    tops: tuple[str, ...]
    """Their paths as plans write them; none lies in another."""
    modules: tuple[nn.Module, ...]
    """The same as objects."""


def groups_of(model: nn.Module, given: Groups | None) -> tuple[Group, ...]:
    """The groups of a model.

    Args:
        model: without the wrappers around it.
        given: globs over module paths, each a group; or groups by name, with a glob or several each. None makes a
            group of each repeated block, of each other child that has modules in it, and of the single layers between.

    Raises:
        UsageError: a group matches nothing or what is another's; all mistakes are named.
    """
    if given is None:
        groups = _default(model)
    else:
        patterns = _patterns(given)
        faults = [fault for globs in patterns.values() for fault in _pattern_faults(globs)]
        if faults:
            raise UsageError("\n".join(faults))
        groups = tuple(_named(model, name, globs) for name, globs in patterns.items())
        faults += [*(fault for one in groups for fault in _match_faults(model, one, patterns)), *_overlaps(groups)]
        if faults:
            raise UsageError("\n".join(faults))
    return _checked_shares(model, groups, is_default=given is None)


def _patterns(given: Any) -> Mapping[str, tuple[Any, ...]]:
    """The globs of each group, by its name."""
    is_listed = isinstance(given, Iterable) and not isinstance(given, (str, Tensor))
    if not is_listed or not given:
        raise UsageError(
            f'groups is {shown(given)}; give globs over module paths such as ["layers.*"], or names with their globs'
        )
    several: Mapping[Any, Any] = given if isinstance(given, Mapping) else {str(one): one for one in given}
    if any(not str(name) for name in several):
        raise UsageError("groups: a name or glob is empty; give each group a name")
    return {
        str(name): tuple(one) if isinstance(one, Sequence) and not isinstance(one, str) else (one,)
        for name, one in several.items()
    }


def _pattern_faults(globs: Sequence[Any]) -> Iterator[str]:
    for one in globs or ("",):
        mistake = mistake_in(one) if isinstance(one, str) else "is no text; a glob over module paths is"
        if mistake is not None:
            yield f"groups: {shown(one)} {mistake}"


def _named(model: nn.Module, name: str, globs: Sequence[str]) -> Group:
    found: dict[str, nn.Module] = {}
    for raw, module in model.named_modules():
        path = without_wrappers(raw)
        is_within = any(path == top or path.startswith(f"{top}.") or not top for top in found)
        if not is_within and any(is_match(one, path) for one in globs):
            found.update(_called(path, module))
    return _group(name, found)


def _called(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The module; in the place of one that only holds others, those."""
    if has_forward(module) or not any(True for _ in module.children()):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _called(without_wrappers(f"{path}.{name}" if path else name), child)


def _match_faults(model: nn.Module, group: Group, patterns: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if group.tops:
        return
    given = ", ".join(patterns[group.name])
    paths = [without_wrappers(raw) for raw, _ in model.named_modules() if raw]
    words = list(dict.fromkeys(word for path in paths for word in (path, f"*.{path.rpartition('.')[2]}")))
    near = closest(given, words)
    children = ", ".join(name for name, _ in model.named_children())
    yield (
        f"groups: {shown(given)} matches no module"
        + (f"; did you mean {quoted(near)}?" if near else "")
        + f" (the model's children: {inert_line(children, max_length=120) or 'none'})"
    )


def _overlaps(groups: Sequence[Group]) -> Iterator[str]:
    for group, other in permutations(groups, 2):
        inner = next((one for one in group.tops if any(_is_in(one, top) for top in other.tops)), None)
        if inner is not None and (group.tops != other.tops or groups.index(group) > groups.index(other)):
            both = f"in {quoted(other.name)} and in {quoted(group.name)}"
            yield f"groups: {quoted(inner or 'the model')} is {both}; give it to one"


def _checked_shares(model: nn.Module, groups: tuple[Group, ...], *, is_default: bool) -> tuple[Group, ...]:
    """The groups, those that share a module as one where the user did not choose them.

    A module that hangs in the model twice has one forward, which cannot be in two formats.
    """
    owners: dict[int, str | None] = {}
    paths: dict[int, str] = {}
    for raw, module in model.named_modules(remove_duplicate=False):
        path = without_wrappers(raw)
        owner = next((one.name for one in groups if any(_is_in(path, top) for top in one.tops)), None)
        first = owners.setdefault(id(module), owner)
        if first != owner:
            names = [name for name in (first, owner) if name is not None]
            if is_default and len(names) == 2:
                return _checked_shares(model, _merged(groups, names), is_default=True)
            outside = f"one is in {quoted(names[0])}, the other in no group"
            both = f"they are in {quoted(names[0])} and {quoted(names[1])}" if len(names) == 2 else outside
            raise UsageError(
                f"groups: {quoted(paths[id(module)])} and {quoted(path)} are one module, which has one forward, and "
                f"{both}; put both into one group"
            )
        paths.setdefault(id(module), path)
    return groups


def _merged(groups: tuple[Group, ...], names: Sequence[str]) -> tuple[Group, ...]:
    first, second = (next(one for one in groups if one.name == name) for name in names)
    tops = dict(zip((*first.tops, *second.tops), (*first.modules, *second.modules), strict=True))
    return tuple(_group("", tops) if one is first else one for one in groups if one is not second)


def _is_in(path: str, top: str) -> bool:
    return not top or path == top or path.startswith(f"{top}.")


def _default(model: nn.Module) -> tuple[Group, ...]:
    found: list[Group] = []
    run: dict[str, nn.Module] = {}

    def end_run() -> None:
        if run:
            found.append(_group("", dict(run)))
            run.clear()

    def walk(module: nn.Module, prefix: str) -> None:
        blocks = _blocks(module)
        for name, child in module.named_children():
            path = without_wrappers(f"{prefix}.{name}" if prefix else name)
            if not any(True for _ in child.children()):
                run[path] = child
            elif child not in blocks and (not has_forward(child) or any(_blocks(one) for one in child.modules())):
                walk(child, path)
            else:
                end_run()
                found.append(_group("", {path: child}))

    walk(model, "")
    end_run()
    with_weights = tuple(one for one in found if any(any(True for _ in part.parameters()) for part in one.modules))
    return with_weights if len(with_weights) > 1 else (_group("model", {"": model}),)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The children that repeat: of one class, with modules in them."""
    children = [child for child in module.children() if any(True for _ in child.children())]
    counts = Counter(type(child) for child in children)
    return [child for child in children if counts[type(child)] > 1]


def _group(name: str, tops: Mapping[str, nn.Module]) -> Group:
    return Group(name=name or _called_by(tuple(tops)), tops=tuple(tops), modules=tuple(tops.values()))


def _called_by(tops: tuple[str, ...]) -> str:
    return tops[0] if len(tops) == 1 else f"{tops[0]} to {tops[-1]}"
