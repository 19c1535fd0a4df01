"""Puts a plan on a model so that groups of its modules can be switched to a safer format and back.

Every module whose format differs between the two has one cell: what replaced its forward, which reads its formats at
each call. A switch writes to cells and does nothing else.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from torch import nn

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.adapt.groups import Group
from ampwise.adapt.options import quoted
from ampwise.plan.plan import Plan, Rule
from ampwise.runtime.casts.cast_forward import CastForward, cast_forward_of
from ampwise.runtime.casts.casting import device_type_of_model, put, put_plan
from ampwise.runtime.casts.op_rules import Formats, OpTable
from ampwise.runtime.casts.own_plan import is_held_off
from ampwise.runtime.casts.plan_places import Bound, Place, bind, without_wrappers

SAFETY = ("fp16", "bf16", "fp32")
"""The formats of regions, each safer than those before it."""
REST = -1
"""The modules that are in no group, where the groups are all of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """The formats of one module."""

    region: Formats | None = None
    table: OpTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    forward: CastForward
    low: _Setting
    high: _Setting


class Cells:
    """The places of a model where its plan moves.

    Law: with a set of groups switched, every module computes as if the plan had a rule for the safer format behind its
    others for each of these groups; nothing of the model changes but attributes of what replaced forwards.

    Args:
        model: without the wrappers around it.
        plan: put into effect on it.
        groups: what moves.
        safer: the format of a group that is up; what the plan computes in a safer one stays there.
        has_rest: the groups are all of the model: with all of them up, so is what lies between them.
        has_products: the modules that multiply by a matrix of theirs are to be measured, too.

    Raises:
        PlanError: as ``apply_plan``.
        CannotRunError: as ``apply_plan``; or the plan computes nothing in a lower format than ``safer``. The model is
            left as it was.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        groups: Sequence[Group],
        *,
        safer: str,
        has_rest: bool,
        has_products: bool = False,
    ) -> None:
        owners = _owners(groups)
        is_off = is_held_off(plan, device_type_of_model(model))  # then nothing moves: all of it is fp32
        settings = {} if is_off else _differing(model, plan, groups, safer=safer, has_rest=has_rest)
        self._num_groups, self._has_rest = len(groups), has_rest
        with ExitStack() as stack:
            stack.callback(put_plan(model, plan))
            products = tuple(_products(group) for group in groups) if has_products else ()
            measured = {id(one): one for found in (*(one.modules for one in groups), *products) for one in found}
            _add_forwards(
                model, {**{id(one): one for one in model.modules() if id(one) in settings}, **measured}, stack
            )
            self._cells: dict[int, list[_Cell]] = {}
            for module in model.modules():
                if id(module) in settings:
                    before, after = settings[id(module)]
                    cell = _Cell(forward=_forward_of(module), low=before, high=after)
                    self._cells.setdefault(owners.get(id(module), REST), []).append(cell)
            self.tops = tuple(tuple(_forward_of(top) for top in group.modules) for group in groups)
            """What replaced the forwards of each group's outermost modules."""
            self.products = tuple(tuple(map(_forward_of, found)) for found in products)
            """Of those in each group that multiply by a matrix, if they are to be measured."""
            self._undo = stack.pop_all()

    def switch(self, raised: Iterable[int]) -> None:
        """Let these groups compute in the safer format from their next call on, all others as the plan says."""
        up = set(raised)
        if self._has_rest and len(up) == self._num_groups:
            up.add(REST)
        for owner, cells in self._cells.items():
            for cell in cells:
                setting = cell.high if owner in up else cell.low
                cell.forward.switch(setting.region, setting.table)

    def close(self) -> None:
        """Take the plan back."""
        self._undo.close()


def movable(model: nn.Module, plan: Plan, groups: Sequence[Group], *, safer: str) -> tuple[bool, ...]:
    """For each group, whether the plan computes anything in it in a lower format than ``safer``.

    Raises:
        UsageError: a group's modules are not called.
        PlanError: as ``Cells``.
        CannotRunError: as ``Cells``.
    """
    bound = bind(model, plan)
    if bound.float8:
        raise CannotRunError(
            f"the plan computes {quoted(bound.float8[0])} in fp8, by a layer of torchao's in its place, which cannot "
            "be switched; give PrecisionScheduler a plan in bf16 or fp16"
        )
    for group in groups:
        if all(path in bound.uncalled for path in group.tops):
            raise UsageError(
                f"groups: {quoted(group.name)} cannot move: nn.MultiheadAttention reads the weights of its out_proj "
                "without calling it; give the attention module itself"
            )
    owners = _owners(groups)
    changing = {owners[key] for key in _differing(model, plan, groups, safer=safer, has_rest=False)}
    return tuple(place in changing for place in range(len(groups)))


def _owners(groups: Sequence[Group]) -> dict[int, int]:
    return {id(one): place for place, group in enumerate(groups) for top in group.modules for one in top.modules()}


def _products(group: Group) -> tuple[nn.Module, ...]:
    """The modules of a group that have a matrix to multiply by."""
    inner = dict.fromkeys(one for top in group.modules for one in top.modules())
    return tuple(one for one in inner if any(own.dim() == 2 for own in one.parameters(recurse=False)))


def _differing(
    model: nn.Module, plan: Plan, groups: Sequence[Group], *, safer: str, has_rest: bool
) -> dict[int, tuple[_Setting, _Setting]]:
    """Each module that changes, with its formats below and above."""
    low = _settings(bind(model, plan))
    high = _raised(model, plan, [top for group in groups for top in group.tops], safer=safer)
    rest = _raised(model, plan, [""], safer=safer) if has_rest else low
    owners, found = _owners(groups), dict[int, tuple[_Setting, _Setting]]()
    for key in dict.fromkeys((*low, *high, *rest)):
        before, after = low.get(key, _Setting()), (high if key in owners else rest).get(key, _Setting())
        if before != after:
            found[key] = before, after
    return found


def _raised(model: nn.Module, plan: Plan, tops: Sequence[str], *, safer: str) -> dict[int, _Setting]:
    """The formats of all modules with these and all in them in the safer format, as the plan would say it."""
    modules = {without_wrappers(raw): one for raw, one in model.named_modules()}
    rules = [rule for top in tops for rule in _rules(plan, top, modules, safer=safer)]
    try:
        return _settings(bind(model, replace(plan, rules=(*plan.rules, *rules, *_kept(plan, safer)))))
    except CannotRunError as error:
        raise CannotRunError(f"the model's groups cannot be moved to {safer}: {error}") from error


def _rules(plan: Plan, top: str, modules: Iterable[str], *, safer: str) -> Iterator[Rule]:
    """Rules that let ``top`` and all in it compute in the safer format, and what is in a safer one there stay."""
    targets: dict[str, str] = {}
    for path in modules:
        if path != top and top and not path.startswith(f"{top}."):
            continue
        own = plan.resolve(path).compute
        target = max(own if own in SAFETY else "fp32", safer, key=SAFETY.index)
        targets[path] = target
        above = path.rpartition(".")[0]
        while above and above not in targets:
            above = above.rpartition(".")[0]
        if path == top or targets.get(above) != target:
            pattern = f"re:{re.escape(path)}" if path else "*"
            yield Rule(module=pattern, compute=target, output=plan.output if not path else None)


def _kept(plan: Plan, safer: str) -> tuple[Rule, ...]:
    """The plan's rules on operators that are as safe: a later rule on their module would overrule them."""
    return tuple(
        rule
        for rule in plan.rules
        if rule.op is not None and rule.compute in SAFETY and SAFETY.index(rule.compute) >= SAFETY.index(safer)
    )


def _settings(bound: Bound) -> dict[int, _Setting]:
    return {id(place.module): _Setting(region=place.region, table=place.table) for place in bound.places}


def _add_forwards(model: nn.Module, modules: Mapping[int, nn.Module], stack: ExitStack) -> None:
    """Replace the forwards of those modules that the plan as it is leaves alone."""
    places = tuple(
        Place(module=one, path="", region=None, table=None) for one in modules.values() if cast_forward_of(one) is None
    )
    bound = Bound(places=places, matches={}, paths=(), uncalled=frozenset(), float8=())
    put(bound, device_type=device_type_of_model(model), stack=stack)


def _forward_of(module: nn.Module) -> CastForward:
    forward = cast_forward_of(module)
    assert forward is not None  # noqa: S101 - narrows the type; it was put there
    return forward
