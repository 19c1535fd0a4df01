"""What a plan means to a training step: the models it is put on, and the loss scale it needs."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from torch.nn import Module
from torch.optim import Optimizer

from ampwise.interpose.seam import Undo
from ampwise.plan.plan import Plan, Updates
from ampwise.runtime.casts.casting import apply_plan
from ampwise.runtime.casts.small_updates import keep_all
from ampwise.runtime.scaling.loss_scale import DynamicLossScale, LossScale


def apply_to_all(modules: Sequence[Module], plan: Plan, *, optimizers: Sequence[Optimizer] = ()) -> Undo:
    """Put the plan into effect on every model and optimizer, or on none if one cannot bear it; returns the undo."""
    formats = replace(plan, updates=Updates.NEAREST)
    with ExitStack() as stack:
        for module in modules:
            stack.callback(apply_plan(module, formats))
        stack.callback(keep_all(optimizers, plan.updates))
        return stack.pop_all().close
    raise AssertionError  # no ExitStack swallows an exception that nothing in it swallows


def scale_of_plan(plan: Plan | None) -> LossScale | None:
    """A dynamic loss scale where something is computed in fp16, whose gradients vanish without; else None."""
    if plan is None:
        return None
    formats = {plan.default, plan.grad, *(one for rule in plan.rules for one in (rule.compute, rule.grad))}
    return DynamicLossScale() if "fp16" in formats else None
