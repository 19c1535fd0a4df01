"""Computes one module of an fp32 run in the format of a plan, for as long as an instrument calls it again."""

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Self

import torch
from torch import nn

from ampwise.emulate.emulation import emulated
from ampwise.emulate.recipes import RECIPES
from ampwise.interpose.cast_lists import share_cuda_lists
from ampwise.observe.modules import ModuleName
from ampwise.plan.plan import Lists, Plan, Rule
from ampwise.runtime.casts.cast_forward import cast_forward_of
from ampwise.runtime.casts.cast_values import DTYPES
from ampwise.runtime.casts.casting import put
from ampwise.runtime.casts.plan_places import bind
from ampwise.runtime.hardware.placement import current_device


class PlanRehearsal:
    """A plan on modules one at a time; nothing of it holds between the calls.

    While it is entered, the process's cast lists are the plan's and its CPU emulates what is to be emulated: neither
    touches what is computed in fp32.

    Args:
        plan: Whose formats.
        emulate: The format that the CPU is given hardware for; None takes the device as it is.
    """

    def __init__(self, plan: Plan, *, emulate: str | None) -> None:
        self._plan = plan
        self._emulate = emulate
        self._device_type = current_device().type if emulate is None else "cpu"
        self._dtype = DTYPES[(RECIPES[emulate].autocast or "fp32") if emulate is not None else plan.default]
        self._stack = ExitStack()

    @property
    def format(self) -> str:
        """The low format, as users say it."""
        return self._emulate or self._plan.default

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._emulate is not None:
                stack.enter_context(emulated(self._emulate))
            if self._plan.lists is Lists.CUDA:
                stack.callback(share_cuda_lists(self._device_type))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @contextmanager
    def __call__(self, module: nn.Module, name: ModuleName, *, lifted: tuple[str, ...] = ()) -> Generator[None]:
        """Within it, ``module`` computes as the plan says for a module of that name, when it is called alone.

        Args:
            module: The module.
            name: What the plan's rules know it by.
            lifted: Operators that are in fp32 all the same.
        """
        plan = _with_lifted(self._plan, lifted)
        with ExitStack() as stack:
            if plan.rules:
                bound = bind(module, plan, prefix=name.inner, root=name.root.name)
                if cast_forward_of(module) is None:
                    put(bound, device_type=self._device_type, stack=stack)
            stack.enter_context(self.outside())
            yield

    def outside(self) -> AbstractContextManager[object]:
        """Within it, what no module computes is computed as the plan's default says."""
        return torch.autocast(self._device_type, dtype=self._dtype, cache_enabled=False)


def _with_lifted(plan: Plan, operators: tuple[str, ...]) -> Plan:
    lifted = tuple(Rule(module="*", op=op, compute="fp32") for op in operators)
    places = {rule.selector for rule in lifted}
    return replace(plan, rules=(*(rule for rule in plan.rules if rule.selector not in places), *lifted))
