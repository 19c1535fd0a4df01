"""Refuses what a TrainStep cannot have been meant to do, each time with the remedy."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ampwise._base.errors import UsageError
from ampwise._base.text import inert_line
from ampwise.compat.collectives import explain
from ampwise.compat.distributed import ddp_of, is_running
from ampwise.compat.optim import name_of, parameters_of
from ampwise.formats import find_format


def check_options(
    optimizers: Sequence[Any],
    modules: Sequence[Any],
    schedulers: Sequence[Any],
    *,
    precision: Any,
    clip_grad_norm: Any,
    clip_grad_value: Any,
    accumulation_steps: Any,
    plan: Any = None,
) -> None:
    """Raise one UsageError that names every fault of a TrainStep's options."""
    faults = [*_optimizer_faults(optimizers), *_scheduler_faults(schedulers, optimizers)]
    faults += [f"modules holds a {type(one).__name__}; give models" for one in modules if not isinstance(one, Module)]
    faults += precision_faults(precision)
    if plan is not None and not modules:
        faults.append("plan is given and no modules; a plan is put on models: modules=[model]")
    if plan is not None and precision != "auto":
        faults.append(
            f"precision is {precision!r} and a plan is given; the plan says which format holds where: give one"
        )
    if type(accumulation_steps) is not int or accumulation_steps < 1:
        faults.append(f"accumulation_steps is {accumulation_steps!r}; give a whole number, 1 or more")
    clips = {"clip_grad_norm": clip_grad_norm, "clip_grad_value": clip_grad_value}
    faults += [
        f"{name} is {value!r}; give a number, more than 0"
        for name, value in clips.items()
        if value is not None and not (isinstance(value, (int, float)) and value > 0)
    ]
    if clip_grad_norm is not None and clip_grad_value is not None:
        faults.append("clip_grad_norm and clip_grad_value are both given; give one")
    if faults:
        raise UsageError("TrainStep: " + "; ".join(faults))


def check_losses(loss: Any) -> tuple[Tensor, ...]:
    """The loss or losses as a tuple.

    Raises:
        UsageError: one of them cannot be backpropagated.
    """
    if isinstance(loss, Mapping):
        loss = list(loss.values())
    losses = tuple(loss) if isinstance(loss, (list, tuple)) else (loss,)
    if not losses:
        raise UsageError("step() was given no loss")
    for one in losses:
        if not isinstance(one, Tensor):
            raise UsageError(f"step() was given a {type(one).__name__}; give the loss as a tensor, without .item()")
        if one.numel() != 1:
            raise UsageError(f"the loss has shape {tuple(one.shape)}; reduce it to a scalar, as with loss.mean()")
        if not one.requires_grad:
            raise UsageError(
                "the loss does not require a gradient: it was made under torch.no_grad(), was detached, or all "
                "parameters are frozen"
            )
    return losses


NO_GRADIENT: Final = (
    "None of its parameters has a gradient: the loss does not depend on them, backward() was not called, or the "
    "optimizer was made before the model was replaced. Do not step it in this iteration."
)


def tells_of_no_gradient(error: AssertionError) -> bool:
    """Whether torch's scaler says by it that an optimizer has no gradients to test."""
    return "No inf checks were recorded for this optimizer" in str(error)


def refuse_passes_under_ddp(losses: Sequence[Tensor], modules: Sequence[Module]) -> None:
    """Raise where several losses with names would be backpropagated through a DistributedDataParallel.

    It reduces the gradients of the first backward pass after a forward pass, and leaves those of others to each rank
    without a word, so that the ranks' parameters drift apart.
    """
    if len(losses) > 1 and is_running() and ddp_of(modules):
        raise UsageError(
            "losses with names take a backward pass each, and DistributedDataParallel reduces the gradients of the "
            "first alone: the ranks would drift apart. Give step() one loss (their sum), or shard with "
            "fully_shard instead"
        )


def backward(losses: Sequence[Tensor], *, each: bool = False) -> None:
    """``torch.autograd.backward``; where the script has done it already, torch's error says whose it is.

    Args:
        losses: backpropagated together.
        each: give each loss a pass of its own; what their graphs share is kept until the last.
    """
    try:
        if each:
            for place, loss in enumerate(losses, 1):
                torch.autograd.backward([loss], retain_graph=place < len(losses))
        else:
            torch.autograd.backward(losses)
    except RuntimeError as error:
        if "second time" in str(error):
            error.add_note("A TrainStep runs the backward pass itself: remove loss.backward() before step(loss).")
        explain(error)
        raise


def as_tuple(given: Any) -> tuple[Any, ...]:
    """What was given, alone or in a list, as a tuple; None is nothing."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def warn_of_no_autocast(precision: str, *, stacklevel: int) -> None:
    """Say what makes the precision asked for have no effect."""
    warnings.warn(
        f"the loss was made outside of `with step.autocast():`, so not in {precision}: put the forward pass and the "
        "loss under it",
        stacklevel=stacklevel + 1,
    )


def name_parameters(modules: Sequence[Module], optimizers: Sequence[Optimizer]) -> Mapping[str, Tensor]:
    """Every parameter of the optimizers by its name in the modules, else by its place in its optimizer, for a text."""
    names: dict[Tensor, str] = {}
    for index, module in enumerate(modules):
        prefix = f"modules[{index}]." if len(modules) > 1 else ""
        names.update({param: prefix + name for name, param in module.named_parameters()})
    found: dict[str, Tensor] = {}
    for index, optimizer in enumerate(optimizers):
        prefix = f"optimizers[{index}]." if len(optimizers) > 1 else ""
        for param in parameters_of(optimizer):
            name = names.get(param) or prefix + name_of(optimizer, param)
            found[inert_line(name, max_length=1000)] = param
    return found


def refuse_fp16_parameters(named_parameters: Mapping[str, Tensor]) -> None:
    """Raise before the first step what ``unscale_`` would raise in it."""
    half = [name for name, param in named_parameters.items() if param.dtype is torch.float16 and param.requires_grad]
    if half:
        more = f" and {len(half) - 5} more" if len(half) > 5 else ""
        raise UsageError(
            f"these parameters are float16: {', '.join(half[:5])}{more}. Training in fp16 needs fp32 parameters, which "
            "autocast casts where it is safe: call model.float() before making the optimizer"
        )


def _optimizer_faults(optimizers: Sequence[Any]) -> list[str]:
    if not optimizers:
        return ["no optimizer is given"]
    strangers = [type(one).__name__ for one in optimizers if not isinstance(one, Optimizer)]
    if strangers:
        return [f"optimizers holds a {name}; give torch.optim optimizers" for name in strangers]
    faults = ["an optimizer is given twice"] if len(set(map(id, optimizers))) < len(optimizers) else []
    return faults if any(parameters_of(one) for one in optimizers) else [*faults, "the optimizers have no parameters"]


def precision_faults(precision: Any) -> list[str]:
    """Why it cannot be a precision's name; empty for any text."""
    if isinstance(precision, str):
        return []
    format_ = find_format(str(precision).removeprefix("torch."))
    name = "auto" if format_ is None else format_.name
    return [f'precision is {precision!r}; give a name, as in precision="{name}"']


def _scheduler_faults(schedulers: Sequence[Any], optimizers: Sequence[Any]) -> list[str]:
    faults: list[str] = []
    for one in schedulers:
        name = type(one).__name__
        if isinstance(one, ReduceLROnPlateau):
            faults.append(f"{name} needs a metric: call its step(metric) yourself where result.stepped")
        elif not any(getattr(one, "optimizer", None) is optimizer for optimizer in optimizers):
            faults.append(f"the scheduler {name} belongs to none of the optimizers")
    return faults
