"""ampwise's loss scale and plans in Accelerate's ``Accelerator``."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from accelerate import Accelerator
from accelerate.utils import DistributedType, GradScalerKwargs
from torch.nn import Module

from ampwise._base.errors import UsageError
from ampwise.compat.accelerate import has_prepared
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.plan.plan import Plan
from ampwise.runtime.scaling.loss_scale import DynamicLossScale, LossScale, get_loss_scale
from ampwise.runtime.scaling.scaler import GradScaler
from ampwise.runtime.step.planned import apply_to_all, scale_of_plan

_WITHOUT: Final = frozenset({DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.FSDP})
"""Backends that scale by rules of their own."""


def use_ampwise(
    accelerator: Accelerator,
    *models: Module,
    plan: AnyPlan | None = None,
    loss_scale: LossScale | str | float | None = None,
) -> Callable[[], None]:
    """Let an ``Accelerator`` scale by ampwise's ``GradScaler`` and its models train under a plan.

    Example::

        accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=4096.0)])
        use_ampwise(accelerator, model, loss_scale="headroom")
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    Call it before ``prepare``; everything else stays Accelerate's: ``backward``, ``clip_grad_norm_``, ``accumulate``,
    ``save_state``, ``load_state``. A handler could only give torch's scaler other numbers; those of a
    ``GradScalerKwargs`` are taken over. A step that is skipped leaves BatchNorm's statistics as they were.

    Args:
        accelerator: its ``mixed_precision`` decides autocast: give ``"fp16"`` where anything is computed in fp16, for
            only then Accelerate unscales before it clips, and ``"no"`` where a plan without fp16 decides everything.
            On a CPU, where Accelerate takes ``"fp16"`` for ``"no"``, it is fp16 from here on.
        models: the models that will be prepared.
        plan: put on the models: a plan, or what names one (see ``apply_plan``).
        loss_scale: as ``TrainStep`` takes it, for one loss; by default the ``GradScalerKwargs``'s, or torch's.

    Returns:
        A function that takes the plan off the models.

    Raises:
        UsageError: ``prepare`` was called already, fp16 is computed in an accelerator that is not in fp16, its backend
            scales by itself, or there is no such plan or loss scale.
    """
    if has_prepared(accelerator):
        raise UsageError("use_ampwise came after accelerator.prepare, which hands the scaler out; call it before")
    rules = None if plan is None else find_plan(plan)
    scale = _scale_for(accelerator, rules, loss_scale)
    with ExitStack() as undo:
        if rules is not None:
            undo.callback(apply_to_all(models, rules))
        if scale is not None:
            scaler = GradScaler.from_loss_scale(scale, device=accelerator.device.type)
            undo.callback(scaler.protect(*models))
            accelerator.scaler, accelerator.native_amp = scaler, True
        return undo.pop_all().close
    raise AssertionError  # no ExitStack swallows an exception that nothing in it swallows


def _scale_for(accelerator: Accelerator, plan: Plan | None, given: Any) -> LossScale | None:
    if accelerator.mixed_precision != "fp16":
        if given is not None or scale_of_plan(plan) is not None:
            raise UsageError(
                f'a loss scale in an Accelerator(mixed_precision="{accelerator.mixed_precision}") would be left in the '
                'gradients that it clips; make it Accelerator(mixed_precision="fp16")'
            )
        return None
    if accelerator.distributed_type in _WITHOUT:
        name = accelerator.distributed_type.value
        raise UsageError(f"Accelerate leaves the loss scale to {name}: set it in that backend's plugin")
    return get_loss_scale(given) if given is not None else _of_handler(accelerator.scaler_handler)


def _of_handler(handler: GradScalerKwargs | None) -> LossScale | None:
    """What the user asked of torch's scaler."""
    if handler is None:
        return DynamicLossScale()
    if not handler.enabled:
        return None
    return DynamicLossScale(
        scale=handler.init_scale,
        growth_factor=handler.growth_factor,
        backoff_factor=handler.backoff_factor,
        growth_interval=handler.growth_interval,
    )
