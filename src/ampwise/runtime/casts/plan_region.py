"""``autocast(plan=)``: a region of code that computes as a plan says."""

import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, final

import torch
from torch import nn

from ampwise._base.errors import UsageError
from ampwise.compat.autocast import is_enabled
from ampwise.observe.modules import unwrapped
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.runtime.casts.cast_values import DTYPES, LOW
from ampwise.runtime.casts.own_plan import announce, is_held_off
from ampwise.runtime.casts.region_rules import RegionRules, rules_for

P = ParamSpec("P")
T = TypeVar("T")


class _Entered(threading.local):
    """How to leave the regions that a thread has entered by one object, the outermost first."""

    def __init__(self) -> None:
        self.stacks: list[ExitStack] = []


@final
class PlanRegion:
    """A context manager and a decorator, as ``torch.autocast`` is: within it, a plan holds. ``autocast`` makes it.

    It may be entered any number of times, within itself and by several threads.
    """

    def __init__(
        self,
        device_type: str,
        plan: AnyPlan,
        *,
        model: nn.Module | None,
        enabled: bool,
        cache_enabled: bool | None,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance] # of a caller without types
            raise UsageError(f"autocast was given a {type(model).__name__} as model; give a torch.nn.Module")
        self._device_type, self._cache_enabled = device_type, cache_enabled
        self._plan = find_plan(plan)
        self._model = None if model is None else unwrapped(model)
        self._dtype = DTYPES[self._plan.default] if DTYPES.get(self._plan.default) in LOW else None
        self._is_enabled = enabled
        made = self._autocast()  # torch's own complaints, once
        if self._dtype is not None:
            self._is_enabled = is_enabled(made)
        elif enabled and is_held_off(self._plan, device_type):
            self._is_enabled = False
        self._own_rules: RegionRules | None = None
        self._entered = _Entered()

    def __enter__(self) -> Self:
        if self._is_enabled and self._dtype is None:  # else torch's own, just below, is seen
            announce(self._plan, by="ampwise.autocast")
        with ExitStack() as stack:
            stack.enter_context(self._autocast())
            if self._is_enabled:
                rules = self._rules()
                for sentence in rules.news():
                    warnings.warn(f"plan: {sentence}", stacklevel=2)
                stack.enter_context(rules.in_force())
            self._entered.stacks.append(stack.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.stacks.pop().__exit__(kind, error, traceback)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Let ``function`` run in the region."""

        @wraps(function)
        def in_region(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return function(*args, **kwargs)

        return in_region

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any]]:
        arguments = {
            "device_type": self._device_type,
            "plan": self._plan,
            "model": self._model,
            "enabled": self._is_enabled,
            "cache_enabled": self._cache_enabled,
        }
        return _made_again, (arguments,)

    def _autocast(self) -> torch.autocast:
        is_on = self._is_enabled and self._dtype is not None
        return torch.autocast(self._device_type, dtype=self._dtype, enabled=is_on, cache_enabled=self._cache_enabled)

    def _rules(self) -> RegionRules:
        if self._model is not None:
            return rules_for(self._plan, device_type=self._device_type, model=self._model)
        if self._own_rules is None:
            self._own_rules = RegionRules(self._plan, device_type=self._device_type, model=None)
        return self._own_rules


def _made_again(arguments: dict[str, Any]) -> PlanRegion:
    return PlanRegion(**arguments)
