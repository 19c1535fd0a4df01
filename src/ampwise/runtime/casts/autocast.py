"""torch's own ``autocast``, or a region of code in which a plan holds."""
# ruff: noqa: FBT001, FBT002 - the arguments are torch's

from typing import TYPE_CHECKING, overload

import torch
from torch import autocast as torchs

from ampwise._base.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from ampwise.plan.find import AnyPlan
    from ampwise.runtime.casts.plan_region import PlanRegion


@overload
def autocast(
    device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> torch.autocast: ...


@overload
def autocast(
    device_type: str,
    dtype: None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
    *,
    plan: "AnyPlan",
    model: "nn.Module | None" = None,
) -> "PlanRegion": ...


def autocast(
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
    *,
    plan: "AnyPlan | None" = None,
    model: "nn.Module | None" = None,
) -> "torch.autocast | PlanRegion":
    """A region of code under autocast: ``torch.autocast`` itself, or with ``plan`` one in which a plan holds.

    Both are context managers and decorators. With a plan, autocast is on in its default format, or off where that is
    fp32; rules on operators that name no module hold for all that runs in the region, the loss too; the others hold in
    ``model``, which outside of the region is as it was.

    It may be made before the loop or anew in each step: what a plan means for a model is found out once, and what was
    compiled is not compiled anew. Backward belongs outside; what a checkpoint runs again there, it runs by the plan.

    Args:
        device_type: as torch's: ``"cuda"``, ``"cpu"``.
        dtype: as torch's; a plan names its format itself.
        enabled: as torch's; without, autocast is off and the plan does not hold.
        cache_enabled: as torch's.
        plan: what is to be computed in which format; or what names it: a file, a preset, a short form.
        model: in which the plan's rules on modules hold. DDP, DataParallel and compiled models are looked through.

    Raises:
        UsageError: ``dtype`` or ``model`` does not go with what else was given.
        PlanError: there is no such plan, or it has mistakes.
        CannotRunError: on entering: another plan is in effect on the model, or torch cannot do what the plan asks for.
    """
    if plan is None:
        if model is not None:
            raise UsageError("autocast was given a model and no plan: model= says where the rules of plan= hold")
        return torchs(device_type, dtype, enabled, cache_enabled)
    if dtype is not None:
        raise UsageError(f"autocast was given dtype {dtype} and a plan, which says the format itself: leave dtype out")
    from ampwise.runtime.casts.plan_region import PlanRegion

    return PlanRegion(device_type, plan, model=model, enabled=enabled, cache_enabled=cache_enabled)
