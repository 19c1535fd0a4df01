"""Evaluation and inference in a precision: autocast without a loss scale, and a model that is left as it was."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ampwise._base.errors import UsageError
from ampwise.compat.tree import map_tensors
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.plan.plan import Plan
from ampwise.runtime.casts.casting import plan_in_effect
from ampwise.runtime.hardware.device import choose_precision
from ampwise.runtime.scaling.misuse import precision_faults
from ampwise.runtime.step.regime import Regime


def evaluate(
    model: Module,
    loader: Iterable[Any],
    *,
    precision: str = "auto",
    plan: AnyPlan | None = None,
    forward: Callable[[Any], Any] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """The model's output for each batch, in a precision, without gradients: ``(batch, output)`` for each.

    Example::

        right = 0
        for (x, y), logits in ampwise.evaluate(model, loader, precision="bf16"):
            right += (logits.argmax(-1) == y).sum()

    Law: outputs are those of ``model.eval()`` under ``torch.autocast`` and ``torch.inference_mode()``, bit for bit.
    Between the batches no context is entered, so that metrics are computed in the caller's precision, and no cast of
    a weight outlives its batch. When the loop ends, is left, or raises, every module is back in the mode it was in:
    BatchNorm's statistics and dropout were not touched.

    Args:
        model: it is put in evaluation mode when the first batch is asked for.
        loader: gives batches; their tensors are moved to the model's device.
        precision: ``auto``, ``fp32``, ``tf32``, ``bf16`` or ``fp16``; no loss scale is needed without gradients.
        plan: in the place of a precision: a plan, or what names one (see ``apply_plan``).
        forward: takes a batch, gives an output; else the model is called with a batch that is a tensor, with the keys
            of a dict, or with the first of a list or tuple, whose others are targets.

    Raises:
        UsageError: no such precision or plan, something is of another kind than it must be, or a batch is none of
            those.
        CannotRunError: the device cannot compute in ``precision``.
    """
    _check(model, loader, precision, forward)
    rules = None if plan is None else find_plan(plan)
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    choice = choose_precision("fp32" if rules else precision, device=device)
    regime = Regime(precision=choice.precision, device_type=device.type)
    return _outputs(model, loader, regime, rules, forward or _call_of(model), device)


def _check(model: Any, loader: Any, precision: Any, forward: Any) -> None:
    faults = precision_faults(precision)
    if not isinstance(model, Module):
        faults.insert(0, f"the model is a {type(model).__name__}; give a torch.nn.Module")
    if not isinstance(loader, Iterable):
        faults.append(f"the loader is a {type(loader).__name__}; give what a loop takes batches from")
    if forward is not None and not callable(forward):
        faults.append(f"forward is a {type(forward).__name__}; give a function of a batch")
    if faults:
        raise UsageError(f"evaluate() cannot be meant so: {'; '.join(faults)}")


def _outputs(
    model: Module,
    loader: Iterable[Any],
    regime: Regime,
    plan: Plan | None,
    forward: Callable[[Any], Any],
    device: torch.device,
) -> Generator[tuple[Any, Any]]:
    in_plan = plan_in_effect(model, plan) if plan else nullcontext()
    with _evaluating(model), in_plan:
        for batch in loader:
            moved = map_tensors(lambda one: one.to(device, non_blocking=True), batch)
            with torch.inference_mode(), regime.forward():
                output = forward(moved)
            yield moved, output


@contextmanager
def _evaluating(model: Module) -> Generator[None]:
    """In evaluation mode, and each module back in its own mode afterwards: some are frozen in theirs on purpose."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _call_of(model: Module) -> Callable[[Any], Any]:
    def call(batch: Any) -> Any:
        if isinstance(batch, Tensor):
            return model(batch)
        if isinstance(batch, Mapping):
            return model(**batch)
        if isinstance(batch, Sequence) and batch and not isinstance(batch, str):
            return model(batch[0])
        raise UsageError(
            f"a batch is a {type(batch).__name__}: give evaluate() a function of a batch, "
            "forward=lambda batch: model(batch.x)"
        )

    return call
