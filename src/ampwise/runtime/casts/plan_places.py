"""Says what a plan means for each module of a model: where another format begins, which rules on operators hold.

Nothing is changed here: a plan that cannot be carried out is refused before it touches the model.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import getattr_static
from typing import Any, Final, Self

import torch
from torch import nn

from ampwise._base.errors import AmpwiseError, CannotRunError, PlanError
from ampwise._base.text import inert_line
from ampwise.plan.binding import misfits
from ampwise.plan.names import operators_meant
from ampwise.plan.patterns import covers, is_match
from ampwise.plan.pinning import outdated_pin
from ampwise.plan.plan import Plan, Resolved, Rule
from ampwise.runtime.casts.cast_values import DTYPES, LOW
from ampwise.runtime.casts.float8 import fits_float8, float8_fault
from ampwise.runtime.casts.op_rules import Entries, Formats, OpTable, is_known, table_of
from ampwise.runtime.hardware.placement import current_device

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""What wrappers call the module within: plans name the module as if it stood alone."""
_NO_ENTRIES = frozenset({"forward", *dir(nn.Module)})
"""Methods that do not compute in the place of a forward."""
_LINEAR = operators_meant("linear")
_REGION_FORMATS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one module gets."""

    module: nn.Module
    path: str
    region: Formats | None
    """Where formats of its own begin; None where it runs in those around it."""
    table: OpTable | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A plan as it is for one model."""

    places: tuple[Place, ...]
    matches: Mapping[int, tuple[str, ...]]
    """For each of the plan's rules that holds somewhere in it: the modules that the rule itself means."""
    paths: tuple[str, ...]
    """Of all modules, as rules may name them."""
    uncalled: frozenset[str]
    """Paths of modules whose weights another reads without calling them."""
    float8: tuple[str, ...]
    """Linear layers that are computed in fp8, by torch's own paths."""


NO_MODEL: Final = Bound(places=(), matches={}, paths=(), uncalled=frozenset(), float8=())
"""What a plan without rules on modules means where there is no model."""


def bind(
    model: nn.Module,
    plan: Plan,
    *,
    prefix: str = "",
    root: str = "",
    with_default: bool = True,
    around: OpTable | None = None,
) -> Bound:
    """What ``plan`` means for ``model``.

    Args:
        model: its modules are named from here.
        plan: what is to be computed in which format.
        prefix: the path of ``model`` below its root.
        root: what the root is called, where rules may name it.
        with_default: the model itself is put into the plan's default format; without, whoever calls it has done so.
        around: what is in force for operators where the model is called.

    Raises:
        PlanError: two paths of a shared module are under different rules.
        CannotRunError: torch cannot do at some place what the plan asks for.
    """
    tree = _Tree.of(model, prefix=prefix)
    held = {path: _holding(plan, path, root=root) for path in dict.fromkeys(tree.paths.values())}
    tensor = next(model.parameters(), None)
    check_float8(plan, current_device() if tensor is None else tensor.device)
    regions = _regions(tree, plan, held, with_default=with_default)
    tables = _tables(tree, plan, held, around=around)
    places = tuple(
        Place(module=module, path=tree.paths[raw], region=regions.get(id(module)), table=tables.get(id(module)))
        for raw, module in tree.firsts()
        if id(module) in regions or id(module) in tables
    )
    for place in places:
        _check_replaceable(place)
    held_anywhere = {index for indices in held.values() for index in indices}
    holding = {index for index in held_anywhere if _is_possible(plan.rules[index])}
    return Bound(
        places=places,
        matches={index: tuple(_meant(plan.rules[index], held, root=root)) for index in sorted(holding)},
        paths=tuple(tree.paths.values()),
        float8=tuple(raw for raw, module in tree.firsts() if raw and _is_float8(plan, module, held[tree.paths[raw]])),
        uncalled=frozenset(tree.paths[raw] for raw in tree.modules if tree.is_uncalled(raw)),
    )


def without_effect(
    plan: Plan,
    modules: Mapping[str, Collection[str]],
    *,
    matches: Mapping[int, Collection[str]],
    uncalled: Collection[str],
) -> Iterator[str]:
    """A sentence for each rule that does nothing, or not what it did when it was written.

    Args:
        plan: whose rules.
        modules: the paths of all modules, by the root's name.
        matches: for each rule, the modules that it means.
        uncalled: modules whose weights another reads.
    """
    outdated = outdated_pin(plan)
    if outdated is not None:
        yield outdated
    yield from misfits(plan, modules)
    for index, paths in matches.items():
        if paths and all(path in uncalled for path in paths):
            yield (
                f"rules[{index}]: {plan.rules[index].place()} has no effect: nn.MultiheadAttention reads the weights "
                "of its out_proj without calling it; give the rule to the attention module itself"
            )
    for index, rule in enumerate(plan.rules):
        if not _is_possible(rule):
            name = inert_line(rule.op or "", max_length=60)
            yield f'rules[{index}].op: "{name}" is no operator registered with torch: the rule has no effect'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """A model's modules by torch's own paths, a shared one by each of its paths."""

    modules: Mapping[str, nn.Module]
    paths: Mapping[str, str]
    """The path that rules name each by."""

    @classmethod
    def of(cls, model: nn.Module, *, prefix: str) -> Self:
        modules = dict(model.named_modules(remove_duplicate=False))
        return cls(modules=modules, paths={raw: _joined(prefix, without_wrappers(raw)) for raw in modules})

    def firsts(self) -> Iterator[tuple[str, nn.Module]]:
        """Each module once."""
        seen: set[int] = set()
        for raw, module in self.modules.items():
            if id(module) not in seen:
                seen.add(id(module))
                yield raw, module

    def is_once(self, module: nn.Module) -> bool:
        """Whether the module hangs in the model by one path only."""
        return sum(one is module for one in self.modules.values()) == 1

    def is_uncalled(self, raw: str) -> bool:
        """Whether the module is one whose weights another reads without calling it."""
        parent, _, name = raw.rpartition(".")
        return name == "out_proj" and isinstance(self.modules[parent], nn.MultiheadAttention)

    def caller(self, raw: str) -> str | None:
        """The path of the module whose forward the module is called in; None for the model itself."""
        while raw:
            raw = raw.rpartition(".")[0]
            if has_forward(self.modules[raw]):
                return raw
        return None


def _holding(plan: Plan, path: str, *, root: str) -> tuple[int, ...]:
    """The rules that hold for something in the module, the earliest first."""
    return tuple(
        index for index, rule in enumerate(plan.rules) if rule.module is None or covers(rule.module, path, root=root)
    )


def _meant(rule: Rule, paths: Iterable[str], *, root: str) -> Iterator[str]:
    """The modules that the rule names, without those that are only in them."""
    if rule.module is not None:
        yield from (path for path in paths if is_match(rule.module, path, root=root))


def _regions(tree: _Tree, plan: Plan, held: Mapping[str, tuple[int, ...]], *, with_default: bool) -> dict[int, Formats]:
    """Where a region begins: a module whose rule is not that of its caller."""
    deciding = {path: _deciding(plan, indices) for path, indices in held.items()}
    found: dict[int, tuple[str, Resolved]] = {}
    for raw, module in tree.modules.items():
        mine = deciding[tree.paths[raw]]
        caller = tree.caller(raw)
        if not has_forward(module):
            continue
        _check_parameters(module, tree.paths[raw], mine.compute)
        above = deciding[tree.paths[caller]] if caller is not None else None
        is_own = with_default or mine.index is not None or (mine.output or mine.grad) is not None
        if is_own if above is None else _differs(mine, above):
            _check_region(module, tree.paths[raw], mine, plan)
            _add_once(found, module, tree.paths[raw], mine)
        elif caller is not None and _is_other_way_in(tree.modules[caller], found, module) and tree.is_once(module):
            _add_once(found, module, tree.paths[raw], replace(mine, output=None, grad=None))
    return {key: _formats(resolved, plan) for key, (_, resolved) in found.items()}


def _is_other_way_in(caller: nn.Module, found: Mapping[int, object], module: nn.Module) -> bool:
    """Whether a module may be called in the place of its caller, in whose forward a region begins.

    As ``encode`` of an autoencoder calls its encoder, without the forward: the region has to begin there too.
    """
    is_plain = not isinstance(module, torch.jit.ScriptModule)
    return is_plain and id(caller) in found and id(module) not in found and _has_entries(type(caller))


def _has_entries(kind: type[nn.Module]) -> bool:
    """Whether a class of modules has methods of its own, beside ``forward``, that somebody may call."""
    own = (
        name
        for base in kind.__mro__
        if not issubclass(nn.Module, base)
        for name, one in vars(base).items()
        if callable(one)
    )
    return any(not name.startswith("_") and name not in _NO_ENTRIES for name in own)


def _deciding(plan: Plan, indices: Sequence[int]) -> Resolved:
    """What ``Plan.resolve`` says of the module."""
    for index in reversed(indices):
        rule = plan.rules[index]
        if rule.op is None:
            return Resolved(compute=rule.compute, output=rule.output, grad=rule.grad, rule=rule, index=index)
    return Resolved(compute=plan.default, output=plan.output, grad=plan.grad, rule=None, index=None)


def _differs(mine: Resolved, above: Resolved) -> bool:
    if mine.index == above.index:
        return False
    return mine.compute != above.compute or (mine.rule is not None and (mine.output or mine.grad) is not None)


def _add_once(found: dict[int, tuple[str, Resolved]], module: nn.Module, path: str, mine: Resolved) -> None:
    """Note a region, unless the module has one by another of its paths."""
    before_path, before = found.setdefault(id(module), (path, mine))
    if (before.compute, before.output, before.grad) != (mine.compute, mine.output, mine.grad):
        raise PlanError(
            f'"{before_path}" and "{path}" are one module, under different rules: {_shown(before)} and {_shown(mine)}. '
            "It has one forward: name one format for both"
        )


def _shown(resolved: Resolved) -> str:
    place = "the default" if resolved.index is None else f"rules[{resolved.index}]"
    return f"{resolved.compute} by {place}"


def _formats(resolved: Resolved, plan: Plan) -> Formats:
    output = DTYPES[resolved.output] if resolved.output is not None else None
    compute = "fp32" if resolved.compute == plan.default == "tf32" else resolved.compute
    return Formats(compute=DTYPES[compute], output=output, grad=resolved.grad)


def _tables(
    tree: _Tree, plan: Plan, held: Mapping[str, tuple[int, ...]], *, around: OpTable | None
) -> dict[int, OpTable]:
    operators = _operators(plan)
    if not any(operators.values()):
        return {}
    own = {path: _entries(plan, indices, operators) for path, indices in held.items()}
    seen_above = _seen_above(tree, own, around=frozenset() if around is None else around.operators)
    by_module: dict[int, set[Entries]] = {}
    for raw, module in tree.modules.items():
        entries = own[tree.paths[raw]]
        shields = seen_above[raw] - entries.keys()
        by_module.setdefault(id(module), set()).add(frozenset({*entries.items(), *((name, None) for name in shields)}))
    return {
        id(module): table_of(next(iter(by_module[id(module)])))
        for _, module in tree.firsts()
        # a module shared between places of different rules runs under those of whoever calls it
        if _takes_table(module) and len(by_module[id(module)]) == 1 and by_module[id(module)] != {frozenset()}
    }


def _operators(plan: Plan) -> dict[int, frozenset[str]]:
    """The operators of each rule that is about operators."""
    return {
        index: rule.operators or frozenset()
        for index, rule in enumerate(plan.rules)
        if rule.op is not None and _is_possible(rule)
    }


def table_around(plan: Plan) -> OpTable | None:
    """What the plan's rules on operators say of code outside of any model: those hold there that name no module."""
    operators = _operators(plan)
    entries = _entries(plan, [index for index in operators if plan.rules[index].module is None], operators)
    return table_of(frozenset(entries.items())) if entries else None


def check_default(plan: Plan) -> None:
    """Refuse a default that torch's autocast cannot compute in.

    Raises:
        CannotRunError: it cannot.
    """
    if plan.default not in {*_REGION_FORMATS, "tf32"}:
        raise _beyond_torch("default", plan.default, _REGION_FORMATS)


def float8_rule(plan: Plan) -> int | None:
    """Which of the plan's rules is the first that asks for linear layers in fp8."""
    return next((index for index, rule in enumerate(plan.rules) if _asks_for_float8(rule)), None)


def check_float8(plan: Plan, device: torch.device) -> None:
    """Refuse fp8 where nothing computes in it.

    Raises:
        CannotRunError: nothing does on ``device``.
    """
    index = float8_rule(plan)
    fault = None if index is None else float8_fault(device)
    if index is not None and fault is not None:
        name = plan.rules[index].compute
        raise CannotRunError(
            f"rules[{index}].compute: {name} is for linear layers on a GPU, and {fault}. "
            f"What its rounding does to the training is shown on a CPU: ampwise run --emulate fp8 SCRIPT"
        )


def _asks_for_float8(rule: Rule) -> bool:
    return rule.compute == "fp8_e4m3" and rule.operators == _LINEAR and rule.output is None


def _is_float8(plan: Plan, module: nn.Module, indices: Sequence[int]) -> bool:
    deciding = [plan.rules[index] for index in indices if (plan.rules[index].operators or _LINEAR) >= _LINEAR]
    return bool(deciding) and _asks_for_float8(deciding[-1]) and fits_float8(module)


def _entries(plan: Plan, indices: Sequence[int], operators: Mapping[int, frozenset[str]]) -> dict[str, Formats | None]:
    """What holds for operators in a module, as far as a rule on operators decides: the last that holds does."""
    entries: dict[str, Formats | None] = {}
    for index in indices:
        rule = plan.rules[index]
        if rule.op is None:
            entries.clear()
        for name in operators.get(index, ()):
            if _asks_for_float8(rule):
                entries.pop(name, None)  # the layer itself is another then
            else:
                entries[name] = _op_formats(rule, index)
    return entries


def _op_formats(rule: Rule, index: int) -> Formats:
    for name in ("compute", "output"):
        given = getattr(rule, name)
        if given is not None and given not in DTYPES:
            raise _beyond_torch(f"rules[{index}].{name}", given, DTYPES)
    output = DTYPES[rule.output] if rule.output is not None else None
    return Formats(compute=DTYPES[rule.compute], output=output, grad=rule.grad)


def _seen_above(
    tree: _Tree, own: Mapping[str, Mapping[str, Any]], *, around: frozenset[str]
) -> dict[str, frozenset[str]]:
    """The operators that rules are about in any of the modules around each one, or around the model."""
    seen: dict[str, frozenset[str]] = {}
    for raw in tree.modules:  # parents first
        above = raw.rpartition(".")[0]
        seen[raw] = seen[above] | own[tree.paths[above]].keys() if raw else around
    return seen


def _takes_table(module: nn.Module) -> bool:
    return has_forward(module) and not isinstance(module, torch.jit.ScriptModule)


def _is_possible(rule: Rule) -> bool:
    """Whether torch has an operator that the rule is about."""
    operators = rule.operators
    return operators is None or any(map(is_known, operators))


def _check_region(module: nn.Module, path: str, mine: Resolved, plan: Plan) -> None:
    place = "default" if mine.index is None else f"rules[{mine.index}].compute"
    if mine.compute not in _REGION_FORMATS and not (mine.compute == plan.default == "tf32"):
        raise _beyond_torch(place, mine.compute, _REGION_FORMATS)
    if mine.output is not None and mine.output not in DTYPES:
        raise _beyond_torch(place.replace("compute", "output").replace("default", "output"), mine.output, DTYPES)
    if isinstance(module, torch.jit.ScriptModule):
        raise CannotRunError(
            f'{place}: "{path or "the model"}" is compiled by TorchScript, whose code no rule reaches; '
            "leave it out of the rule, or use the module that it was compiled from"
        )


def _check_replaceable(place: Place) -> None:
    """Refuse a module whose forward does not give way to an attribute of its own."""
    if isinstance(getattr_static(type(place.module), "forward", None), property):
        raise CannotRunError(
            f'"{place.path or "the model"}" ({type(place.module).__name__}) has a property for its forward, which '
            "nothing can take the place of: make forward a method, or wrap the module in one whose forward calls it"
        )


def _check_parameters(module: nn.Module, path: str, compute: str) -> None:
    """Refuse what would end in torch's complaint about different dtypes, at the first product."""
    if compute in {"fp32", "tf32"} and not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        low = next((name for name, one in module.named_parameters(recurse=False) if one.dtype in LOW), None)
        if low is not None:
            dtype = str(getattr(module, low).dtype).removeprefix("torch.")
            raise CannotRunError(
                f'"{path or "the model"}" is to compute in {compute}, but its {low} is {dtype}; '
                "keep its parameters in fp32 (.float()), or let it compute in the format they are in"
            )


def _beyond_torch(place: str, name: str, possible: Iterable[str]) -> AmpwiseError:
    if name == "tf32":
        return CannotRunError(
            f"{place}: tf32 is a switch of the whole process, not of a module; write it as the plan's default"
        )
    if name == "fp8_e4m3" and place.endswith(".compute"):
        return CannotRunError(
            f'{place}: fp8_e4m3 is for linear layers, with results as they come; write op = "linear" in the rule. '
            "What its rounding does to the training is shown by emulation: ampwise run --emulate fp8 SCRIPT"
        )
    return CannotRunError(
        f"{place}: torch's autocast cannot compute in {name}; choose one of {', '.join(possible)}. "
        f"What its rounding does to the training is shown by emulation: ampwise run --emulate {name} SCRIPT"
    )


def has_forward(module: nn.Module) -> bool:
    """Whether the module computes something of its own: lists of modules are not called, wrappers only pass on."""
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return False
    children = [name for name, _ in module.named_children()]
    return not (len(children) == 1 and children[0] in _WRAPPERS and not any(True for _ in module.parameters(False)))


def without_wrappers(raw: str) -> str:
    """A path of torch's as plans write it."""
    parts = raw.split(".")
    while parts and parts[0] in _WRAPPERS:
        parts.pop(0)
    return ".".join(part for part in parts if not (part.startswith("_") and part in _WRAPPERS))


def _joined(prefix: str, path: str) -> str:
    return ".".join(part for part in (prefix, path) if part)
