"""Puts a plan's rules into effect in a script that knows nothing of it: on each model, before its first forward."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from ampwise._base.errors import AmpwiseError
from ampwise._base.text import inert_line
from ampwise.compat.modules import is_replica
from ampwise.interpose.module_call import MODULE_CALL
from ampwise.interpose.seam import intercept
from ampwise.observe.modules import ModuleNames
from ampwise.plan.binding import gathered, idle_in_words
from ampwise.plan.pinning import outdated_pin
from ampwise.plan.plan import Plan
from ampwise.runner.script import RefusedRun
from ampwise.runtime.casts.cast_forward import RunsForward, cast_forward_of
from ampwise.runtime.casts.casting import put
from ampwise.runtime.casts.float8 import linears_in_float8
from ampwise.runtime.casts.op_rules import OpTable, in_force, table_of
from ampwise.runtime.casts.plan_places import bind, table_around, without_effect

_NUM_NAMED = 3
"""Modules that a line names before it only counts."""


class PlanRules:
    """A plan's rules on whatever modules a script calls; the plan's default is not their business.

    A rule that brings an operator to fp32 and names no module holds outside of the modules too, as in a loss. Other
    formats do not: what a script does outside of its modules is the optimizer's step and the data's preparation too.

    Args:
        plan: Whose rules.
        device_type: Whose autocast.
    """

    def __init__(self, plan: Plan, *, device_type: str) -> None:
        self._plan = plan
        self._device_type = device_type
        self._names = ModuleNames()
        self._known: WeakSet[nn.Module] = WeakSet()
        self._stack = ExitStack()
        self._matches: dict[int, dict[str, None]] = {}
        self._uncalled: set[str] = set()
        self._paths: dict[str, dict[str, None]] = {}
        self._around = _in_fp32(table_around(plan))

    def start(self) -> None:
        """Bind each model from now on when it is first called."""
        if self._plan.rules or (self._plan.output or self._plan.grad) is not None:
            self._stack.callback(intercept(MODULE_CALL, self._around_call))
        if self._around is not None:
            self._stack.enter_context(in_force(self._around))

    def stop(self) -> None:
        """Leave the modules as they were. May be called more than once."""
        self._stack.close()

    def notes(self) -> Iterator[str]:
        """What each rule held for, and which held for nothing."""
        if not self._paths:
            outdated = outdated_pin(self._plan)
            yield from () if outdated is None else (f"plan: {outdated}",)
            return
        for index, paths in sorted(self._matches.items()):
            rule = self._plan.rules[index]
            is_around = self._around is not None and bool((rule.operators or set()) & self._around.operators)
            where = f"{_shown([*paths])}{', and outside of them' if is_around and rule.module is None else ''}"
            yield f"plan: rules[{index}], {rule.formats()} for {rule.place()}: {where}"
        models = {root: paths for root, paths in self._paths.items() if len(paths) > 1} or self._paths
        sentences = without_effect(self._plan, models, matches=self._matches, uncalled=self._uncalled)
        for sentence in gathered(sentences, [path for paths in models.values() for path in paths]):
            yield f"plan: {sentence}"
        idle = idle_in_words(self._plan, models)
        if idle is not None:
            yield f"plan: no module for {idle}"

    def _around_call(self, proceed: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        if module not in self._known and not is_replica(module):
            try:
                self._bind(module)
            except AmpwiseError as error:
                raise RefusedRun(error) from error
        return proceed(module, *args, **kwargs)

    def _bind(self, module: nn.Module) -> None:
        name = self._names.name_of(module)
        root, inner = (name.root.name, name.inner) if name else ("", "")
        bound = bind(module, self._plan, prefix=inner, root=root, with_default=False, around=self._around)
        if bound.float8:
            self._stack.callback(linears_in_float8(module, bound.float8))
            # the layers there now
            bound = bind(module, self._plan, prefix=inner, root=root, with_default=False, around=self._around)
        new = [place for place in bound.places if place.module not in self._known]
        free = tuple(place for place in new if cast_forward_of(place.module) is None)
        put(replace(bound, places=free), device_type=self._device_type, stack=self._stack, kind=RunsForward)
        for place in new:
            own = cast_forward_of(place.module)
            if own is not None and place not in free:  # of the script's own plan
                self._stack.callback(own.switch, own.region, own.table)
                own.switch(place.region or own.region, place.table or own.table)
        self._known.update(module.modules())
        self._paths.setdefault(root, {}).update(dict.fromkeys(bound.paths))
        self._uncalled |= bound.uncalled
        for index, paths in bound.matches.items():
            self._matches.setdefault(index, {}).update(dict.fromkeys(paths))


def _in_fp32(table: OpTable | None) -> OpTable | None:
    entries = () if table is None else table.entries
    found = frozenset((name, one) for name, one in entries if one is not None and one.compute is torch.float32)
    return table_of(found) if found else None


def _shown(paths: list[str]) -> str:
    if not paths:
        return "in every module"
    names = ", ".join(inert_line(path or "the model itself", max_length=60) for path in paths[:_NUM_NAMED])
    more = f" and {len(paths) - _NUM_NAMED} more" if len(paths) > _NUM_NAMED else ""
    return f"{names}{more}"
