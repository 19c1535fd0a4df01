"""What a plan puts in force for regions of code, and takes away again whenever one is left."""

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import nn

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.compat.dynamo import is_compiling_here
from ampwise.compat.tf32 import tf32_enabled
from ampwise.interpose.checkpointing import CHECKPOINT, REENTRANT_CHECKPOINT
from ampwise.interpose.replicate import REPLICATE
from ampwise.interpose.seam import Undo, intercept
from ampwise.plan.plan import Plan, Updates
from ampwise.runtime.casts.cast_values import DTYPES, LOW
from ampwise.runtime.casts.casting import check_free, check_kept, follow_lists, idle_rules, is_low, rebound
from ampwise.runtime.casts.op_rules import in_force
from ampwise.runtime.casts.plan_places import (
    NO_MODEL,
    Bound,
    bind,
    check_default,
    check_float8,
    float8_rule,
    table_around,
)
from ampwise.runtime.casts.region_forwards import RegionForwards

_MOST_KEPT = 16
"""Plans that one model is remembered with."""


class RegionRules:
    """The rules of a plan, for regions around a model or around code of no model's.

    Law: after ``in_force`` all is as it was, but for CUDA's cast lists: they are the process's, and what was compiled
    goes with them, so they stay from the first region on for as long as this object is there.

    Args:
        plan: the plan.
        device_type: whose autocast the regions are of.
        model: whose modules the rules name.

    Raises:
        UsageError: the plan is about a model's modules, and there is no model.
        PlanError: as ``apply_plan``.
        CannotRunError: as ``apply_plan``; or the plan says what cannot be done in a region of code.
    """

    def __init__(self, plan: Plan, *, device_type: str, model: nn.Module | None) -> None:
        _check_possible(plan, device_type)
        self._plan, self._device_type = plan, device_type
        self._table = table_around(plan)
        if model is None:
            _check_needs_no_model(plan)
            bound, self._forwards = NO_MODEL, None
        else:
            bound = self._bound_to(model)
            self._forwards = RegionForwards(model, bound, device_type=device_type)
        self._is_low = DTYPES.get(plan.default) in LOW or is_low(bound)
        self._news = tuple(idle_rules(plan, bound))
        self._lock = threading.Lock()
        self._follows_lists = False

    def fits(self, model: nn.Module) -> bool:
        """Whether they are still right for the model."""
        return self._forwards is not None and self._forwards.fits(model)

    def news(self) -> tuple[str, ...]:
        """A sentence for each rule that does nothing, though the plan says so; told once."""
        told, self._news = self._news, ()
        return told

    @contextmanager
    def in_force(self) -> Generator[None]:
        """Within it the rules hold: for this thread's code, and for the model whoever calls it."""
        outer = _THREAD.rules
        with ExitStack() as stack:
            self._follow_lists()
            if self._plan.default == "tf32":
                stack.enter_context(tf32_enabled(on=True))
            if self._forwards is not None:
                stack.enter_context(self._forwards.on_model())
                stack.callback(intercept(REPLICATE, rebound))
            if self._table is not None:
                stack.enter_context(in_force(self._table))
            stack.callback(intercept(CHECKPOINT, _around_checkpoint))
            stack.callback(intercept(REENTRANT_CHECKPOINT, _around_reentrant))
            _THREAD.rules = (*outer, self)
            try:
                yield
            finally:
                _THREAD.rules = outer

    def _follow_lists(self) -> None:
        with self._lock:
            if self._follows_lists or not self._is_low:
                return
            finalize(self, _let_go, follow_lists(self._plan, self._device_type)).atexit = False
            self._follows_lists = True

    def _bound_to(self, model: nn.Module) -> Bound:
        check_free(model)
        check_kept(model, self._plan)
        _check_device(model, self._device_type)
        return bind(model, self._plan, with_default=False, around=self._table)


class _Thread(threading.local):
    """The rules that are in force in this thread, the outermost region's first."""

    def __init__(self) -> None:
        self.rules: tuple[RegionRules, ...] = ()


_THREAD = _Thread()
_KNOWN: WeakKeyDictionary[nn.Module, dict[tuple[Plan, str], RegionRules]] = WeakKeyDictionary()
"""The rules that were made for each model, while it is there: a loop may ask for them anew in each step."""
_LOCK = threading.Lock()


def rules_for(plan: Plan, *, device_type: str, model: nn.Module) -> RegionRules:
    """The rules of ``plan`` for regions around ``model``: the same object for as long as they fit it.

    Raises:
        PlanError: as ``RegionRules``.
        CannotRunError: as ``RegionRules``.
    """
    with _LOCK:
        known = _KNOWN.setdefault(model, {})
        found = known.pop((plan, device_type), None)
        if found is None or not found.fits(model):
            found = RegionRules(plan, device_type=device_type, model=model)
        known[plan, device_type] = found  # behind those that were asked for less lately
        if len(known) > _MOST_KEPT:
            del known[next(iter(known))]
        return found


def forget(model: nn.Module) -> None:
    """Keep nothing for further regions around the model: CUDA's cast lists need not stay for as long as it does."""
    with _LOCK:
        kept = _KNOWN.pop(model, None)
    del kept  # outside of the lock: what ends with them may take it


class _RunAgain:
    """What a checkpoint was given in a region, and runs again when that was left: under the same rules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._rules = _THREAD.rules

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _THREAD.rules == self._rules:
            return self._function(*args, **kwargs)
        with ExitStack() as stack:
            for one in self._rules:
                stack.enter_context(one.in_force())
            return self._function(*args, **kwargs)
        raise AssertionError  # no ExitStack swallows an exception that nothing in it swallows


def _around_checkpoint(proceed: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    return proceed(_again(function), *args, **kwargs)


def _around_reentrant(proceed: Callable[..., Any], ctx: Any, function: Any, *args: Any) -> Any:
    return proceed(ctx, _again(function), *args)


def _again(function: Any) -> Any:
    return _RunAgain(function) if _THREAD.rules and not isinstance(function, _RunAgain) else function


def _let_go(undo: Undo) -> None:
    """Take the cast lists back; what is being compiled meanwhile must be ready before the compiler is told."""
    if is_compiling_here():
        threading.Thread(target=undo).start()  # waits for it
    else:
        undo()


def is_possible(plan: Plan, device_type: str) -> bool:
    """Whether a region of code can be all that the plan says, whatever the model."""
    try:
        _check_possible(plan, device_type)
    except CannotRunError:
        return False
    return True


def _check_possible(plan: Plan, device_type: str) -> None:
    """Refuse what a plan may say of a whole training, and what no torch can do."""
    check_default(plan)
    check_float8(plan, torch.device(device_type))
    index = float8_rule(plan)
    if index is not None:
        raise CannotRunError(
            f"rules[{index}].compute: {plan.rules[index].compute} puts other layers in the place of the model's linear "
            "ones, which is done once and not in each step: apply_plan(model, plan) before the loop"
        )
    if plan.updates is not Updates.NEAREST:
        raise CannotRunError(
            f'updates = "{plan.updates}" is for the optimizer to do: apply_plan(model, plan, optimizers=optimizer) '
            "before the loop, or TrainStep(optimizer, modules=[model], plan=plan)"
        )


def _check_needs_no_model(plan: Plan) -> None:
    index = next((index for index, rule in enumerate(plan.rules) if rule.module is not None), None)
    if index is not None:
        about = f"rules[{index}] is about modules ({plan.rules[index].place()})"
    elif plan.output is not None:
        about = f'output = "{plan.output}" is about what a model gives'
    elif plan.grad is not None:
        about = f'grad = "{plan.grad}" is about the gradients in a model'
    else:
        return
    raise UsageError(f"the plan's {about}: say of which model, autocast(device_type, plan=plan, model=model)")


def _check_device(model: nn.Module, device_type: str) -> None:
    found = {one.device.type for one in (*model.parameters(), *model.buffers())} - {"meta"}
    if found and device_type not in found:
        raise UsageError(
            f'autocast("{device_type}", plan=...) was given a model on {" and ".join(sorted(found))}; '
            f'write autocast("{min(found)}", ...), or move the model: model.to("{device_type}")'
        )
