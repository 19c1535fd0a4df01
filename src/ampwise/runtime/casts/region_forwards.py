"""The forwards of a plan that are on a model within regions of code only, and go on it and off it in each step.

They are made once: compiled code knows them by identity, so that a loop that enters a region in every step compiles its
model once. Outside of regions they hold nothing of the model, whose life is its own.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from operator import call, is_
from typing import Any
from weakref import ref

from torch import nn

from ampwise._base.errors import CannotRunError
from ampwise.compat.modules import structure_of
from ampwise.runtime.casts.cast_forward import CastForward, forward_kept, is_planned, kept_forward
from ampwise.runtime.casts.plan_places import Bound

Own = Callable[..., Any]
"""What a forward calls that somebody kept beyond its region: the module's own, by way of a weak reference."""


class RegionForward(CastForward):
    """A module's forward within a region. A copy or a pickle of the module made there has its own forward."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any]]:
        return forward_kept, (kept_forward(self.call),)


class RegionForwards:
    """What a plan's places get on one model.

    Law: when ``on_model`` has been left as often as it was entered, the model is as it was. Between, any number of
    regions and threads share what is on it.

    Args:
        model: the model.
        bound: what the plan means for it.
        device_type: whose autocast, where the arguments of a call do not tell.
    """

    def __init__(self, model: nn.Module, bound: Bound, *, device_type: str) -> None:
        self._names, modules = structure_of(model)
        self._modules = [ref(module) for module in modules]
        self._places: list[tuple[Callable[[], nn.Module | None], RegionForward, Own]] = []
        for one in bound.places:
            own = partial(_call_own, ref(one.module))
            forward = RegionForward(own, region=one.region, table=one.table, device_type=device_type)
            self._places.append((ref(one.module), forward, own))
        self._lock = threading.Lock()
        self._num_regions = 0
        self._on: list[tuple[nn.Module, RegionForward, Own, Any]] = []
        self._is_spoilt = False

    def fits(self, model: nn.Module) -> bool:
        """Whether the model consists of the modules that it had, and what was put on them came off again."""
        if self._is_spoilt or self._num_regions:
            return not self._is_spoilt
        names, modules = structure_of(model)
        return names == self._names and all(map(is_, modules, map(call, self._modules)))

    @contextmanager
    def on_model(self) -> Generator[None]:
        """Within it the model computes by the plan, whoever calls it.

        Raises:
            CannotRunError: another plan is in effect on it.
        """
        with self._lock:
            if not self._num_regions:
                self._put()
            self._num_regions += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_regions -= 1
                if not self._num_regions:
                    self._take_off()

    def _put(self) -> None:
        """Once a step and module: past the module's own way of setting attributes, which takes ten times as long."""
        for reference, forward, own in self._places:
            module = reference()
            if module is None:
                continue
            attributes = vars(module)
            before = attributes.get("forward")
            if is_planned(module):
                self._take_off()
                raise CannotRunError(
                    "another plan is in effect on this model: call the undo that apply_plan returned, or leave the "
                    "other plan's region first"
                )
            forward.call = module.forward if before is None else before
            attributes["forward"] = forward
            self._on.append((module, forward, own, before))

    def _take_off(self) -> None:
        while self._on:
            module, forward, own, before = self._on.pop()
            attributes = vars(module)
            if attributes.get("forward") is not forward:
                forward.release()  # somebody else's lies over it, and goes on calling it
                self._is_spoilt = True
                continue
            if before is None:
                del attributes["forward"]
            else:
                attributes["forward"] = before
            forward.call = own


def _call_own(module: Callable[[], nn.Module | None], *args: Any, **kwargs: Any) -> Any:
    found = module()
    if found is None:
        raise CannotRunError("the module whose forward this was is gone")
    return found.forward(*args, **kwargs)
